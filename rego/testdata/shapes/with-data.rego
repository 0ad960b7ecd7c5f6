# from: policies that ask a rule with other data
# data: {"mode": "strict", "lists": {"strict": ["a.shop.test"], "loose": ["a.shop.test", "b.shop.test"]}}
# allow: https://b.shop.test/
# deny: https://c.shop.test/
package egress

import rego.v1

listed if input.destination.host in data.lists[data.mode]

allow contains {"rule": "loose"} if listed with data.mode as "loose"
