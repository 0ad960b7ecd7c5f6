# v0
# says: write it as allow in package egress
package envoy.authz

import input.attributes.request.http as req

default allow = {"allowed": false}

allow = answer {
	req.method == "GET"
	answer := {"allowed": true, "headers": {"x-team": "blue"}}
}
