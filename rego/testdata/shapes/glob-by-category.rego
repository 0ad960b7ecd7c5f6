# from: lists of domains by category
# allow: https://x.crm.test/
# deny: https://paste.test/
# deny: https://a.x.crm.test/
package egress

import rego.v1

approved := {
	"crm": {"*.crm.test"},
	"watch": {"*.watch.test", "*.look.test"},
}

allow contains {"rule": category} if {
	some category, patterns in approved
	some pattern in patterns
	glob.match(pattern, [], input.destination.host)
}
