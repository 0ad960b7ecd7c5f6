# from: OPAL, some … in
# says: write it as allow in package egress
package rbac.authz

import rego.v1

default allow := false

allow if {
	some grant in user_is_granted
	input.action == grant.action
	input.resource == grant.resource
}

user_is_granted contains grant if {
	some role in data.user_roles[input.role]
	some grant in data.role_grants[role]
}
