# from: tables of hosts by tenant in data
# data: {"teams": {"blue": {"hosts": ["a.shop.test"]}, "*": {"hosts": ["open.shop.test"]}}}
# allow: https://open.shop.test/
# deny: https://a.shop.test/
package egress

import rego.v1

hosts_of(name) := object.get(data.teams, [name, "hosts"], [])

allow contains {"rule": "team"} if input.destination.host in hosts_of(input.sandbox.name)

allow contains {"rule": "everybody"} if input.destination.host in hosts_of("*")
