# lint: write "GET"
# deny: https://a.shop.test/x
package egress

allow contains {"rule": "read"} if {
	input.destination.host == "a.shop.test"
	input.http.method == "get"
}
