# from: gateways' configurations
# lint: leave the comparison out
# deny: https://a.shop.test/
package egress

allow contains {"rule": "any"} if {
	input.http.method == "*"
	input.destination.host == "a.shop.test"
}
