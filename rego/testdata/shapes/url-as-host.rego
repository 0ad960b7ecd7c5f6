# from: lists of URLs
# lint: a host is no URL
# deny: https://a.shop.test/
package egress

allow contains {"rule": "listed"} if input.destination.host in ["https://a.shop.test", "https://b.shop.test"]
