# from: rate limits
# allow: https://a.shop.test/
# deny: https://b.shop.test/
package egress

import rego.v1

limits := {"a.shop.test": 60, "b.shop.test": -1}

allow contains {"rule": "listed"} if limits[input.destination.host]

deny contains {"rule": "too-many", "reason": "slow down"} if {
	input.usage.requests_minute > limits[input.destination.host]
}
