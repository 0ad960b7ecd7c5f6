# from: newcomers, a scheme
# says: compare input.destination.port
package egress

allow contains {"rule": "tls"} if {
	input.protocol == "https"
	input.destination.host == "model.shop.test"
}
