package egress_test

import data.egress

job(name, host, method, path) := {
	"sandbox": {"name": name},
	"destination": {"host": host, "port": 443},
	"http": {"method": method, "path": path},
}

test_fetch if {
	every name in {"build", "release"} {
		{"rule": "fetch"} in egress.allow with input as job(name, "registry.npmjs.org", "GET", "/left-pad")
		{"rule": "fetch"} in egress.allow with input as job(name, "pypi.org", "HEAD", "/simple/")
	}
	count(egress.allow) == 0 with input as job("build", "evil.example", "GET", "/")
}

test_only_a_release_publishes if {
	{"rule": "publish"} in egress.allow with input as job("release", "registry.npmjs.org", "PUT", "/acme-shop")
	count(egress.allow) == 0 with input as job("build", "registry.npmjs.org", "PUT", "/acme-shop")
	count(egress.allow) == 0 with input as job("release", "registry.npmjs.org", "PUT", "/left-pad")
	count(egress.allow) == 0 with input as job("release", "pypi.org", "PUT", "/acme-shop")
}

test_artifacts if {
	{"rule": "artifacts"} in egress.allow with input as job("build", "artifacts.acme.example", "PUT", "/ci/1/out.tgz")
	count(egress.allow) == 0 with input as job("build", "artifacts.acme.example", "DELETE", "/ci/1/out.tgz")
	count(egress.allow) == 0 with input as job("build", "artifacts.acme.example", "GET", "/private/x")
}

test_tokens if {
	count(egress.deny) == 1 with input as job("build", "registry.npmjs.org", "GET", "/-/npm/v1/tokens")
	count(egress.deny) == 0 with input as job("build", "registry.npmjs.org", "GET", "/left-pad")
}
