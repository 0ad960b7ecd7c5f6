# from: blocks of addresses with net.cidr_contains_matches
# allow: https://a.shop.test/
# deny: https://172.16.4.4/
package egress

import rego.v1

blocks := ["10.0.0.0/8", "172.16.0.0/12"]

allow contains {"rule": "all"}

deny contains {"rule": "inside", "reason": blocks[block]} if {
	some [block, _] in net.cidr_contains_matches(blocks, input.destination.addresses)
}
