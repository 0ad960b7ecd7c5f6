# from: policies by environment
# allow: https://b.shop.test/
# deny: https://a.shop.test/
package egress

import rego.v1

allow contains {"rule": "prod"} if {
	input.sandbox.labels.environment == "prod"
	input.destination.host == "a.shop.test"
}

allow contains {"rule": "dev"} if {
	not input.sandbox.labels.environment
	input.destination.host == "b.shop.test"
}
