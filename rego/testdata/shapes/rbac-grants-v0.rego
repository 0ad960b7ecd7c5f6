# from: OPAL's example of roles
# v0
# says: write it as allow in package egress
package app.rbac

default allow = false

allow {
	user_is_manager
}

allow {
	some grant
	user_is_granted[grant]
	input.action == grant.action
	input.type == grant.type
}

user_is_manager {
	some i
	data.users[input.user].roles[i] == "manager"
}

user_is_granted[grant] {
	some i, j
	role := data.users[input.user].roles[i]
	grant := data.role_permissions[role][j]
}
