# says: that is a file as conftest reads it
package egress

deny contains {"rule": "sealed"} if {
	input.kind == "Parcel"
	not input.spec.sealed
}
