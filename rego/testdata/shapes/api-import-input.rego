# from: HTTP API examples that import input
# v0
# says: write it as allow in package egress
package httpapi.authz

import input

default allow = false

allow {
	input.owner == true
}

allow {
	input.action != "shop:PutCrate"
	input.owner == false
}
