# allow: GET https://model.shop.test/v1/x
# deny: DELETE https://model.shop.test/v1/x
package egress

allow contains {"rule": "phase-1"} if {
	input.stage != "http"
	input.destination.host == "model.shop.test"
}

allow contains {"rule": "phase-2"} if {
	input.stage == "http"
	input.destination.host == "model.shop.test"
	not blocked
}

blocked if input.http.method == "DELETE"

blocked if {
	some prefix in ["/admin", "/till"]
	startswith(input.http.path, prefix)
}
