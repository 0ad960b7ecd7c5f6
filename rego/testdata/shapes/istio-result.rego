# v0
# says: write it as allow in package egress
package istio.authz

default allow = false

allow {
	input.attributes.request.http.headers["x-shop"] == "yes"
}

status := 200 { allow } else = 403 { true }

result["allowed"] := allow
result["http_status"] := status
