# says: nothing reads denied
package egress

denied contains {"rule": "mail"} if input.destination.port == 25

allow contains {"rule": "all"}
