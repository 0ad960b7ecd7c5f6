# v0
# says: Gatekeeper's violation
package shopallowedsources

violation[{"msg": msg}] {
	crate := input.review.object.spec.crates[_]
	ok := [good | source = input.parameters.sources[_]; good = startswith(crate.source, source)]
	count(ok) == 0
	msg := sprintf("crate <%v> is from <%v>", [crate.name, crate.source])
}
