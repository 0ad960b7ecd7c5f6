# from: a check of Kubernetes network policies, a constant as the message
# v0
# says: write it as deny in package egress
package kubernetes

ours = {"10.1.0.0/16", "10.2.0.0/16"}

deny[msg] {
	input.kind == "NetworkPolicy"
	block := input.spec.egress[_].to[_].ipBlock.cidr
	not ours_contains(ours, block)
	msg := sprintf("not ours: %v", [block])
}

deny["everything may leave"] {
	input.kind == "NetworkPolicy"
	not input.spec.egress[_].to
}

ours_contains(set, x) {
	net.cidr_contains(set[_], x)
}
