# says: write input.http.method, .path
package egress

allow contains {"rule": "status"} if {
	input.request.http.path == "/status"
	input.request.http.method == "GET"
}
