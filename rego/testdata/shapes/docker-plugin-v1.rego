# from: a Docker socket proxy, several helpers
# says: write it as allow in package egress
package docker.authz

import rego.v1

allow if ping

allow if listed

ping if {
	input.Method == "HEAD"
	input.Path == "/_ping"
}

listed if {
	input.Method == "GET"
	endswith(input.Path, "/crates/json")
}
