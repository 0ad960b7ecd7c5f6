# from: the same by net.class
# lint: no address has this class
package egress

import rego.v1

allow contains {"rule": "public"} if {
	some address in input.destination.addresses
	net.class(address) == "PUBLIC"
}
