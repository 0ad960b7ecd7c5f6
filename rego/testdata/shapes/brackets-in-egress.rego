# from: Scalr's brackets, in package egress: an object of v1 and no set
# says: deny contains {"rule": "NAME"}
package egress

import rego.v1

deny[reason] if {
	input.destination.port == 25
	reason := {"rule": "mail"}
}
