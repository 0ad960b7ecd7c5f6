# The organisation's own rules: what it refuses to everybody, and what the layers
# below it may open at most.
package egress

deny contains {"rule": "org-ports", "reason": "only the ports of the web"} if not input.destination.port in {80, 443}

deny contains {"rule": "org-storage", "reason": "data stays in the organisation's own storage"} if {
	host.any(input.destination.host, data.organisation.foreign_storage)
}

# What is not read only needs a host on the list.
deny contains {"rule": "org-read-only", "reason": "writes need a host on the list of the security team"} if {
	not input.http.method in {"GET", "HEAD", "OPTIONS"}
	not host.any(input.destination.host, data.organisation.may_write)
}

# A ceiling opens nothing by itself: a user's line or a project's has to allow it.
ceiling contains {"rule": "may-open"} if host.any(input.destination.host, data.organisation.may_open)

ceiling contains {"rule": "may-read"} if {
	host.any(input.destination.host, data.organisation.may_read)
	input.http.method in {"GET", "HEAD"}
}
