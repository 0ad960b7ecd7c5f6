# from: gateways that bound bodies
# lint: a number is less than every text
# deny: POST https://b.shop.test/
package egress

allow contains {"rule": "small"} if {
	input.destination.host == "a.shop.test"
	input.http.body_size < "1MB"
}
