# from: Kubernetes admission without Gatekeeper
# v0
# says: write it as deny in package egress
package kubernetes.admission

deny[msg] {
	input.request.kind.kind == "Crate"
	source := input.request.object.spec.crates[_].source
	not startswith(source, "shop.test/")
	msg := sprintf("source '%v' is not ours", [source])
}
