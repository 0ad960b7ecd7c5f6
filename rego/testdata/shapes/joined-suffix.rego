# allow: https://x.shop.test/
# deny: https://evilshop.test/
package egress

allow contains {"rule": "shop"} if {
	some name in {"shop.test"}
	endswith(input.destination.host, concat("", [".", name]))
}
