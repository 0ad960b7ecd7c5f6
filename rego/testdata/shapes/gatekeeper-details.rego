# says: Gatekeeper's violation
package shopnames

violation contains {"msg": msg, "details": {"missing": missing}} if {
	given := {label | input.review.object.metadata.labels[label]}
	missing := {"owner", "till"} - given
	count(missing) > 0
	msg := sprintf("labels are missing: %v", [missing])
}
