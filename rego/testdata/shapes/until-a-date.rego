# from: access until a date, as OPA wants it
# allow: https://a.shop.test/
# deny: https://b.shop.test/
package egress

allow contains {"rule": "until"} if {
	input.destination.host == "a.shop.test"
	time.now_ns() < time.parse_rfc3339_ns("2131-01-01T00:00:00Z")
}
