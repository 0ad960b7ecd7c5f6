# from: policies that call a function with object.union
# allow: https://b.shop.test/
# deny: https://c.shop.test/
package egress

import rego.v1

base := {"a.shop.test": {"port": 443}}

more := {"b.shop.test": {"port": 443}}

table := object.union(base, more)

allow contains {"rule": "table"} if table[input.destination.host].port == input.destination.port
