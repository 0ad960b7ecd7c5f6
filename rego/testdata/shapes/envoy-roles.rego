# v0
# says: write it as allow in package egress
package envoy.authz

import input.attributes.request.http as req

default allow = false

allow {
	role_may[[req.method, segments[0]]]
}

segments = split(trim(req.path, "/"), "/")

role_may[[method, area]] {
	role := data.roles[_]
	method := role.methods[_]
	area := role.area
}
