# lint: host.matches
# deny: https://a.shop.test/x
package egress

allow contains {"rule": "read"} if input.destination.host == "*.shop.test"
