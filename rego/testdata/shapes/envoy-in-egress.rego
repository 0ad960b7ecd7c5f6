# says: that is Envoy's input
package egress

allow contains {"rule": "shop"} if {
	input.attributes.request.http.method == "GET"
	startswith(input.attributes.request.http.path, "/shop/")
}
