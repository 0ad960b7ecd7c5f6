# from: Spacelift plan policies, a message made in the head
# v0
# says: conftest's warn
package spacelift

warn[sprintf("%s of %s wants a look", [action, crate.address])] {
	crate := input.terraform.resource_changes[_]
	action := crate.change.actions[_]
	{"update", "delete"}[action]
}

sample = true
