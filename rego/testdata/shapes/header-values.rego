# from: Envoy policies, as egressd reads headers
# allow: https://a.shop.test/x
# deny: https://b.shop.test/x
package egress

import rego.v1

allow contains {"rule": "shop"} if input.destination.host == "a.shop.test"

deny contains {"rule": "crates", "reason": concat(" ", ["sent", concat(", ", marks)])} if {
	marks := object.get(input.http.headers, "x-shop", [])
	some mark in marks
	startswith(mark, "crate-")
}
