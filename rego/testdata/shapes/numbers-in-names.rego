# from: shards by number
# allow: https://db-7.shop.test/
# deny: https://db-12.shop.test/
package egress

import rego.v1

hosts := {sprintf("db-%d.shop.test", [n]) | some n in numbers.range(1, 9)}

allow contains {"rule": "shards"} if input.destination.host in hosts
