package egress_test

import data.egress

asked(host, method, path) := {
	"destination": {"host": host, "port": 443},
	"http": {"method": method, "path": path},
}

test_models if {
	{"rule": "models"} in egress.allow with input as {"destination": {"host": "api.anthropic.com", "port": 443}}
	count(egress.allow) == 0 with input as {"destination": {"host": "api.anthropic.com", "port": 22}}
	count(egress.allow) == 0 with input as {"destination": {"host": "evilapi.anthropic.com", "port": 443}}
}

test_repositories_are_read if {
	{"rule": "github-read"} in egress.allow with input as asked("api.github.com", "GET", "/repos/acme/shop/issues")
	count(egress.allow) == 0 with input as asked("api.github.com", "POST", "/repos/acme/shop/issues")
	count(egress.allow) == 0 with input as asked("api.github.com", "GET", "/repos/acme/secrets/issues")
	count(egress.allow) == 0 with input as asked("api.github.com", "GET", "/repos/acme/shop/../secrets")
}

test_paste_sites_are_denied if {
	count(egress.deny) == 1 with input as asked("gist.github.com", "GET", "/")
	count(egress.deny) == 1 with input as asked("eu.pastebin.com", "POST", "/api")
	count(egress.deny) == 0 with input as asked("api.github.com", "GET", "/repos/acme/shop")
}
