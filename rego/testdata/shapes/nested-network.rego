# from: an agent's policy about network events
# says: egressd decides connections and requests
package egress

import rego.v1

deny contains {"rule": "leak"} if {
	input.network.egress
	not net.cidr_contains("10.0.0.0/8", input.network.destination)
}
