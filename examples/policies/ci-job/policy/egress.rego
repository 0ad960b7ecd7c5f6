# What jobs may reach. The sandboxes "build" and "release" share all but publishing.
package egress

registries := {"registry.npmjs.org", "pypi.org", "files.pythonhosted.org", "proxy.golang.org", "sum.golang.org"}

allow contains {"rule": "fetch"} if {
	host.any(input.destination.host, registries)
	input.http.method in {"GET", "HEAD"}
}

allow contains {"rule": "artifacts"} if {
	host.matches(input.destination.host, "artifacts.acme.example")
	input.http.method in {"GET", "PUT"}
	path.matches(input.http.path, "/ci/**")
}

allow contains {"rule": "publish"} if {
	input.sandbox.name == "release"
	host.matches(input.destination.host, "registry.npmjs.org")
	input.http.method == "PUT"
	path.matches(input.http.path, "/acme-*")
}

deny contains {"rule": "no-credentials-endpoint", "reason": "jobs have no business with registry tokens"} if {
	host.matches(input.destination.host, "registry.npmjs.org")
	path.matches(input.http.path, "/-/npm/v1/tokens/**")
}
