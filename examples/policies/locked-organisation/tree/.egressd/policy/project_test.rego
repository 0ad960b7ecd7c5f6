package egress.project_test

import data.egress.project

asked(host, method, path) := {
	"destination": {"host": host, "port": 443},
	"http": {"method": method, "path": path},
}

test_prices if {
	{"rule": "prices"} in project.allow with input as asked("prices.partner.example", "GET", "/")
	count(project.allow) == 0 with input as asked("prices.partner.example", "POST", "/")
	count(project.allow) == 0 with input as asked("partner.example", "GET", "/")
}

test_graphql if {
	count(project.deny) == 1 with input as asked("api.github.com", "POST", "/graphql")
	count(project.deny) == 0 with input as asked("api.github.com", "GET", "/repos/acme/shop")
}
