# from: API gateways, roles of a user in data
# says: write it as allow in package egress
package authz

import rego.v1

default allow := false

allow if {
	some role in input.roles
	role in {"clerk", "manager"}
	input.method == "GET"
	input.path in ["/till"]
}
