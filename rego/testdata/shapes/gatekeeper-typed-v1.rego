# from: Gatekeeper's library after OPA 1.0, functions by their first argument
# says: Gatekeeper's violation
package shopallowedusers

import rego.v1

violation contains {"msg": msg} if {
	some field in ["runAsUser", "runAsGroup"]
	some crate in input.review.object.spec.crates
	msg := message_for(field, crate)
}

message_for("runAsUser", crate) := sprintf("%s has no user", [crate.name]) if not crate.runAsUser

message_for(field, crate) := sprintf("%s has no %s", [crate.name, field]) if {
	field != "runAsUser"
	not crate[field]
}
