# from: an organisation's base policy, deny before allow by else
# says: egressd decides connections and requests
package gantry

import rego.v1

default decision := {"effect": "deny", "rules": []}

decision := {"effect": "deny", "rules": sort(denied)} if {
	count(denied) > 0
} else := {"effect": "allow", "rules": sort(allowed)} if {
	count(allowed) > 0
}

denied contains "mail" if input.action == "network.connect"

allowed contains "dns" if input.action == "network.resolve"
