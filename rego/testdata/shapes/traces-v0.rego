# from: older policies that are being tried out
# v0
# says: write print
package egress

allow[{"rule": "model"}] {
	trace(sprintf("asked about %v", [input.destination.host]))
	input.destination.host == "a.shop.test"
}
