# allow: https://a.shop.test/x
# deny: https://10.1.2.3/
package egress

allow contains {"rule": "all"}

deny contains {"rule": "intranet"} if {
	some address in input.destination.addresses
	net.cidr_contains("10.0.0.0/8", address)
}
