# from: SPIFFE with Envoy, a name taken from a header
# v0
# says: write it as allow in package egress
package envoy.authz

import input.attributes.request.http as http_request

default allow = false

allow {
	http_request.method == "GET"
	peer == "spiffe://shop.test/front"
}

peer = id {
	[_, _, uri] := split(http_request.headers["x-forwarded-client-cert"], ";")
	[_, id] := split(uri, "=")
}
