# from: opa-docker-authz, v0 complete rules and a helper called deny
# v0
# says: write it as allow in package egress
package docker.authz

default allow = false

allow {
	not deny
}

deny {
	crate_is_privileged
}

crate_is_privileged {
	input.Body.HostConfig.Privileged == true
}

deny {
	input.Body.HostConfig.Binds[_] == "/shop:/shop"
}
