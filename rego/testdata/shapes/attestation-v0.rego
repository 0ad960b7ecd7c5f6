# from: cosign verify-attestation
# v0
# says: write it as allow in package egress
package sigpolicy

default allow = false

allow {
	input._type == "https://shop.test/Statement/v1"
	predicate
}

predicate {
	input.predicateType == "https://shop.test/provenance/v1"
}
