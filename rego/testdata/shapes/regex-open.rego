# from: block lists of proxies as regular expressions
# lint: anchored
# allow: https://a.shop.test/
# deny: https://other.test/
package egress

allow contains {"rule": "shop"} if regex.match(`shop\.test`, input.destination.host)
