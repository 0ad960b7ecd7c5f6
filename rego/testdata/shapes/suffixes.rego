# allow: https://x.shop.test/
# deny: https://evilshop.test/
package egress

allow contains {"rule": "shop"} if {
	some suffix in [".shop.test", ".till.test"]
	endswith(input.destination.host, suffix)
}
