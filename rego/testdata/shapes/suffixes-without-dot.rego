# lint: *.shop.test
# allow: https://x.shop.test/
# deny: https://other.test/
package egress

trusted := {"shop.test", "till.test"}

allow contains {"rule": "shop"} if {
	some name in trusted
	endswith(input.destination.host, name)
}
