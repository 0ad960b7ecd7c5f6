package egress_test

import data.egress

asked(host, port, method) := {
	"destination": {"host": host, "port": port},
	"http": {"method": method, "path": "/"},
}

rules := {r.rule | some r in egress.deny}

test_reads_are_not_denied if count(egress.deny) == 0 with input as asked("docs.acme.example", 443, "GET")

test_ports if "org-ports" in rules with input as asked("docs.acme.example", 22, "GET")

test_storage if {
	"org-storage" in rules with input as asked("drop.storage.example", 443, "GET")
	"org-storage" in rules with input as asked("any.s3.amazonaws.com", 443, "GET")
	not "org-storage" in rules with input as asked("storage.example", 443, "GET")
}

test_writes if {
	"org-read-only" in rules with input as asked("docs.acme.example", 443, "POST")
	count(egress.deny) == 0 with input as asked("api.github.com", 443, "POST")
}

under := {r.rule | some r in egress.ceiling}

test_ceiling if {
	under == {"may-open"} with input as asked("wiki.acme.example", 443, "POST")
	under == {"may-read"} with input as asked("api.partner.example", 443, "GET")
	count(under) == 0 with input as asked("api.partner.example", 443, "POST")
	count(under) == 0 with input as asked("evil.example", 443, "GET")
	count(under) == 0 with input as asked("acme.example.evil.example", 443, "GET")
}
