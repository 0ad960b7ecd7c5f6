# from: Regal, a rule of one's own with a name in brackets
# says: name the file with package regal.result
package custom.regal.rules.naming["shop-names"]

import rego.v1

import data.regal.result

report contains violation if {
	some rule in input.rules
	startswith(rule.head.name, "tmp_")
	violation := result.fail(rego.metadata.chain(), result.location(rule.head))
}
