# The organisation's own rules: they deny, and leave it to others to allow.
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
