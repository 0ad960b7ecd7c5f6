# from: agents' policies that ask about an action
# says: write input.destination.host
package egress

import rego.v1

allow contains {"rule": "get"} if {
	input.action == "http_get"
	input.target_host in ["model.shop.test"]
}
