# from: policies that look names up themselves
# says: reaches outside
package egress

deny contains {"rule": "inside"} if {
	some address in net.lookup_ip_addr(input.destination.host)
	net.cidr_contains("10.0.0.0/8", address)
}
