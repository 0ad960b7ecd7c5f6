# says: nobody asks
package shop.decision

decision := {"allow": allow, "reasons": reasons}

default allow := false

allow if count(reasons) == 0

reasons contains "mail" if input.destination.port == 25
