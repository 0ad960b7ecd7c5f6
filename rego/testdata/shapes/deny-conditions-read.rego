# from: the same, read by a deny
# allow: https://a.shop.test/
# deny: https://evil.test/
package egress

import rego.v1

allow contains {"rule": "all"}

default deny_foreign := false

deny_foreign if not host.matches(input.destination.host, "*.shop.test")

deny contains {"rule": "foreign"} if deny_foreign
