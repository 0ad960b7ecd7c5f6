# from: process rules
# lint: a whole path
# deny: https://a.shop.test/
package egress

allow contains {"rule": "curl"} if input.process.exe == "curl"
