# from: gateways that bound bodies
# allow: POST https://a.shop.test/
# deny: POST https://b.shop.test/
package egress

import rego.v1

allow contains {"rule": "small", "max_bytes_up": units.parse_bytes("1MB")} if {
	input.destination.host == "a.shop.test"
	object.get(input.http, "body_size", 0) < units.parse_bytes("1MB")
}
