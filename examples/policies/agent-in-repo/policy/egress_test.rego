package egress_test

import data.egress

asked(host, method, path) := {
	"destination": {"host": host, "port": 443},
	"http": {"method": method, "path": path},
}

test_model if {
	{"rule": "model-api"} in egress.allow with input as {"destination": {"host": "api.anthropic.com", "port": 443}}
	not {"rule": "model-api"} in egress.allow with input as {"destination": {"host": "api.anthropic.com", "port": 22}}
}

test_own_repository_is_read if {
	count(egress.allow) == 1 with input as asked("api.github.com", "GET", "/repos/acme/shop/issues")
	count(egress.allow) == 0 with input as asked("api.github.com", "GET", "/repos/acme/secrets/issues")
	count(egress.allow) == 0 with input as asked("api.github.com", "GET", "/repos/acme/shop/../secrets")
	count(egress.allow) == 0 with input as asked("api.github.com", "DELETE", "/repos/acme/shop/issues/1")
}

test_pull_requests if {
	{"rule": "gh-api-pulls"} in egress.allow with input as asked("api.github.com", "POST", "/repos/acme/shop/pulls")
	{"rule": "gh-api-pulls"} in egress.allow with input as asked("api.github.com", "POST", "/repos/acme/shop/issues/7/comments")
	count(egress.allow) == 0 with input as asked("api.github.com", "POST", "/gists")
}

test_git if {
	{"rule": "git"} in egress.allow with input as asked("github.com", "POST", "/acme/shop.git/git-receive-pack")
	{"rule": "git"} in egress.allow with input as asked("github.com", "GET", "/acme/shop/info/refs")
	count(egress.allow) == 0 with input as asked("github.com", "POST", "/evil/drop.git/git-receive-pack")
	count(egress.allow) == 0 with input as asked("evilgithub.com", "POST", "/acme/shop.git/git-receive-pack")
}

test_paste_sites if {
	count(egress.deny) == 1 with input as asked("gist.github.com", "GET", "/")
	count(egress.deny) == 1 with input as asked("eu.pastebin.com", "POST", "/api")
	count(egress.deny) == 0 with input as asked("github.com", "GET", "/acme/shop/info/refs")
}
