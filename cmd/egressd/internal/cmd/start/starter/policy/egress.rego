# What sandboxes may reach. Nothing is allowed that no rule allows; deny beats allow.
package egress

allow contains {"rule": "models"} if {
	host.any(input.destination.host, data.models)
	input.destination.port == 443
}

# Issues and files of our repositories are read, and not written.
allow contains {"rule": "github-read"} if {
	host.matches(input.destination.host, "api.github.com")
	input.destination.port == 443
	input.http.method in {"GET", "HEAD"}
	some repository in data.repositories
	path.matches(input.http.path, sprintf("/repos/%s/**", [repository]))
}

deny contains {"rule": "no-paste", "reason": "code does not leave by way of paste sites"} if {
	host.any(input.destination.host, data.paste)
}
