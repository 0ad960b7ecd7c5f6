# from: newcomers, a prefix among addresses
# lint: an address has no prefix
# allow: https://a.shop.test/
package egress

deny contains {"rule": "inside"} if "10.0.0.0/8" in input.destination.addresses

allow contains {"rule": "all"}
