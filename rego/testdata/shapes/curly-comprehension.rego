# from: lists of objects with a host and an owner
# data: {"services": [{"host": "a.shop.test", "owner": "blue", "on": true}, {"host": "b.shop.test", "owner": "red", "on": false}]}
# allow: https://a.shop.test/
# deny: https://b.shop.test/
package egress

import rego.v1

owner_of := {s.host: s.owner | some s in data.services; s.on}

allow contains {"rule": owner_of[input.destination.host]}
