# What an agent may reach that works in the repositories of data.repositories.
package egress

allow contains {"rule": "model-api"} if {
	host.any(input.destination.host, data.models)
	input.destination.port == 443
}

allow contains {"rule": "gh-api-read"} if {
	host.matches(input.destination.host, "api.github.com")
	input.http.method in {"GET", "HEAD"}
	some repository in data.repositories
	path.matches(input.http.path, sprintf("/repos/%s/**", [repository]))
}

allow contains {"rule": "gh-api-pulls"} if {
	host.matches(input.destination.host, "api.github.com")
	input.http.method == "POST"
	some repository in data.repositories
	path.any(input.http.path, [
		sprintf("/repos/%s/pulls", [repository]),
		sprintf("/repos/%s/issues/*/comments", [repository]),
	])
}

# Git over HTTPS: of the repositories alone, fetched and pushed.
allow contains {"rule": "git"} if {
	host.matches(input.destination.host, "github.com")
	some repository in data.repositories
	path.any(input.http.path, [
		sprintf("/%s.git/**", [repository]),
		sprintf("/%s/info/refs", [repository]),
		sprintf("/%s/git-*-pack", [repository]),
	])
}

deny contains {"rule": "no-paste", "reason": "code does not leave by way of paste sites"} if {
	host.any(input.destination.host, data.paste)
}
