# A project's rules stand in package egress.project. They allow inside the ceiling,
# and they deny.
package egress.project

allow contains {"rule": "prices"} if {
	host.matches(input.destination.host, "prices.partner.example")
	input.http.method == "GET"
}

deny contains {"rule": "no-graphql", "reason": "this repository uses the REST API"} if {
	host.matches(input.destination.host, "api.github.com")
	path.matches(input.http.path, "/graphql")
}
