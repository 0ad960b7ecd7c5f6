# from: gateways that look whether a header is there
# allow: https://a.shop.test/x
# deny: https://b.shop.test/x
package egress

import rego.v1

allow contains {"rule": "plain"} if {
	input.destination.host == "a.shop.test"
	object.get(input.http.headers, "x-shop", "") == ""
}
