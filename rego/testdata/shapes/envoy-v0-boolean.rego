# v0
# says: write it as allow in package egress
package envoy.authz

import input.attributes.request.http as req

default allow = false

allow {
	req.method == "GET"
	glob.match("/shop/*", ["/"], req.path)
}
