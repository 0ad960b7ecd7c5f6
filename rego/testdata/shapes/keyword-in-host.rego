# from: content filters, a word anywhere in the name
# lint: anywhere
# allow: https://a.shop.test/
# deny: https://other.test/
package egress

allow contains {"rule": "shop"} if contains(input.destination.host, "shop")
