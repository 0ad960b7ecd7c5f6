# from: Scalr, brackets of v0 with the if of v1
# says: write it as deny in package egress
package terraform

import rego.v1

deny[reason] if {
	crate := input.tfplan.resource_changes[_]
	crate.type == "shop_crate"
	reason := sprintf("say yes to %q", [crate.address])
}
