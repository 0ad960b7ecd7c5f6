# allow: https://a.shop.test/
# deny: https://d.shop.test/
package egress

import rego.v1

sources := ["a.shop.test", "b.shop.test"]

allow contains {"rule": "all"}

deny contains {"rule": "sources", "reason": msg} if {
	not input.destination.host in sources
	msg := sprintf("%s is no source", [input.destination.host])
}
