# from: an agent's rules, a condition for each refusal
# says: nothing reads deny_foreign
package egress

import rego.v1

allow contains {"rule": "all"}

deny_foreign if not host.matches(input.destination.host, "*.shop.test")
