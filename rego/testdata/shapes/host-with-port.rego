# lint: have no port
# deny: https://a.shop.test/x
package egress

allow contains {"rule": "read"} if input.destination.host in {"a.shop.test:443", "b.shop.test:443"}
