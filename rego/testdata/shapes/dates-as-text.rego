# from: access until a date
# lint: a number is less than every text
# allow: https://a.shop.test/
package egress

allow contains {"rule": "until"} if {
	input.destination.host == "a.shop.test"
	time.now_ns() < "2031-01-01T00:00:00Z"
}
