# from: Envoy, a whole reply and a default that is an object
# v0
# says: write it as allow in package egress
package envoy.authz

import input.attributes.request.http as http_request

default allow = {"allowed": false, "http_status": 401, "body": "no"}

allow = reply {
	token.valid
	reply := {"allowed": true, "headers": {"x-keeper": token.payload.name}}
}

token = {"valid": valid, "payload": payload} {
	[_, encoded] := split(http_request.headers.authorization, " ")
	[valid, _, payload] := io.jwt.decode_verify(encoded, {"secret": "tulip"})
}
