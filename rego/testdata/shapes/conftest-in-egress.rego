# says: "reason": msg
package egress

deny contains msg if {
	input.destination.port == 25
	msg := sprintf("port %d is for mail", [input.destination.port])
}
