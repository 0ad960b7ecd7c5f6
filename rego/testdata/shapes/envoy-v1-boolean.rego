# says: write it as allow in package egress
package envoy.authz

import rego.v1

import input.attributes.request.http as req

default allow := false

allow if {
	req.path == "/status"
	req.method in {"GET", "HEAD"}
}
