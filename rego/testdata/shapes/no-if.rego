# from: newcomers, contains without if
# says: `if` keyword is required
package egress

allow contains {"rule": "model"} {
	input.destination.host == "model.shop.test"
}
