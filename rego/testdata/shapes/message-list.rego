# says: a member is
package egress

deny contains ["mail", msg] if {
	input.destination.port == 25
	msg := "no mail"
}
