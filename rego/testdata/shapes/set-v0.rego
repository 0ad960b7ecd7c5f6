# v0
# allow: https://model.shop.test/
# deny: https://other.shop.test/
package egress

allow[{"rule": "model"}] {
	input.destination.host == "model.shop.test"
}
