# from: newcomers, a port in quotes
# says: without quotes
package egress

allow contains {"rule": "tls"} if {
	input.destination.port == "443"
	input.destination.host == "model.shop.test"
}
