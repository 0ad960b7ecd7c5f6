# from: a proxy with phases
# lint: it is one of name, address
# deny: https://a.shop.test/
package egress

import rego.v1

allow contains {"rule": "connect"} if {
	input.stage == "request_headers"
	input.destination.host == "a.shop.test"
}
