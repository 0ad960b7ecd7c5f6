# from: a Kafka authorizer, functions of the action
# v0
# says: write it as allow in package egress
package kafka.authz

default allow = false

allow {
	reads(input.action)
	own_shelf(input.action)
}

reads(action) {
	action.operation == "READ"
}

own_shelf(action) {
	owner := trim_suffix(input.requestContext.principal.name, "-reader")
	startswith(action.resourcePattern.name, owner)
}
