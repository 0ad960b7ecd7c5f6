# from: newcomers, the matched host as the member
# data: {"sources": ["a.shop.test", "b.shop.test"]}
# says: write an object
package egress

allow contains host if {
	some host in data.sources
	input.destination.host == host
}
