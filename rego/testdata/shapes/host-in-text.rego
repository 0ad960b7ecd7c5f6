# from: newcomers, names with commas in one text
# lint: no host equals this
# deny: https://a.shop.test/
package egress

allow contains {"rule": "listed"} if input.destination.host in "a.shop.test,b.shop.test"
