# from: a policy enforcement point of an agent, with constraints
# data: {"config": {"allowed_domains": ["shop.test"]}}
# says: egressd decides connections and requests
package pep

import rego.v1

default decision := {"allow": false, "reason": "not listed"}

decision := {"allow": true, "reason": "listed", "constraints": object.get(data.config, "constraints", {})} if {
	input.action.type == "http.request"
	host_allowed(input.action.resource.host)
}

host_allowed(host) if {
	some domain in data.config.allowed_domains
	endswith(host, concat("", [".", domain]))
}
