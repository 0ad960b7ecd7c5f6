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
