# from: container rules
# lint: it is one of certificate
# deny: https://a.shop.test/
package egress

allow contains {"rule": "docker"} if input.sandbox.kind == "docker"
