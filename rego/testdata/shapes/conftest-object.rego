# says: "msg" is how conftest and Gatekeeper say it
package egress

deny contains {"msg": msg, "rule": "mail"} if {
	input.destination.port == 25
	msg := "no mail"
}
