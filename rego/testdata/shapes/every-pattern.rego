# from: policies of endpoints, every over a list of what is refused
# allow: https://a.shop.test/x
# deny: https://paste.shop.test/x
# deny: https://other.test/x
package egress

import rego.v1

refused := ["paste.shop.test", "*.drop.shop.test"]

allow contains {"rule": "shop"} if {
	host.matches(input.destination.host, "*.shop.test")
	every pattern in refused {
		not host.matches(input.destination.host, pattern)
	}
}
