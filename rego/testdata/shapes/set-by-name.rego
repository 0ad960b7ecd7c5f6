# from: v0's sets with brackets
# allow: https://a.shop.test/
# deny: https://c.shop.test/
package egress

hosts := {"a.shop.test", "b.shop.test"}

allow contains {"rule": "listed"} if hosts[input.destination.host]
