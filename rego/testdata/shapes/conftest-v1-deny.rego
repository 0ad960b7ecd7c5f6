# says: write it as deny in package egress
package main

deny contains msg if {
	input.kind == "Parcel"
	not input.spec.sealed
	msg := "parcels have to be sealed"
}
