# from: allow lists with strings.any_suffix_match
# allow: https://x.shop.test/
# deny: https://evilshop.test/
package egress

allow contains {"rule": "shop"} if strings.any_suffix_match(input.destination.host, {".shop.test", ".till.test"})
