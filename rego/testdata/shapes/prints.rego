# from: policies that are being tried out
# allow: https://a.shop.test/
# deny: https://b.shop.test/
package egress

allow contains {"rule": "model"} if {
	print("asked about", input.destination.host)
	input.destination.host == "a.shop.test"
}
