# v0
# says: allow is a set of reasons
package egress

default allow = false

allow {
	input.destination.host == "model.shop.test"
}
