# from: gateways' configurations
# lint: a method is one word
# deny: https://a.shop.test/
package egress

allow contains {"rule": "read"} if input.http.method == "GET,HEAD"
