# from: conftest, rules with names after the underscore, and exceptions
# says: a file as conftest reads it
package main

import rego.v1

deny_root contains msg if {
	input.kind == "Parcel"
	not input.spec.closed
	msg := "close it"
}

exception contains rules if rules := ["root"]
