# from: tables of ports and hosts in data, as egressd compares them
# data: {"ports": [443, 8443], "hosts": ["a.shop.test"], "limits": {"a.shop.test": 10}}
# allow: https://a.shop.test/x
# deny: a.shop.test:25
# deny: https://b.shop.test/x
package egress

import rego.v1

allow contains {"rule": "table"} if {
	input.destination.port in data.ports
	data.hosts[_] == input.destination.host
	input.usage.flows_open < data.limits[input.destination.host]
}
