# from: Gatekeeper's library, with its helpers in other packages
# v0
# says: Gatekeeper's violation
package shoppspprivileged

import data.lib.exclude_update.is_update
import data.lib.exempt_container.is_exempt

violation[{"msg": msg, "details": {}}] {
	not is_update(input.review)
	c := input_crates[_]
	not is_exempt(c)
	c.securityContext.privileged
	msg := sprintf("no such crate: %v", [c.name])
}

input_crates[c] {
	c := input.review.object.spec.crates[_]
}
