# from: policies with dotted names of rules
# allow: https://a.shop.test/
# deny: https://b.shop.test/
# deny: a.shop.test:8443
package egress

import rego.v1

shop.hosts contains "a.shop.test"

shop.ports["a.shop.test"] := 443

shop.ports["b.shop.test"] := 8443

allow contains {"rule": "shop"} if {
	input.destination.host in shop.hosts
	input.destination.port == shop.ports[input.destination.host]
}
