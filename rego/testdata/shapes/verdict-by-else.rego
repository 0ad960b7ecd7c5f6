# from: policies that choose by else
# allow: https://a.shop.test/
# deny: https://evil.test/
# deny: GET http://a.shop.test/
package egress

import rego.v1

verdict := "deny" if {
	input.destination.port == 80
} else := "allow" if {
	input.destination.host in {"a.shop.test"}
} else := "deny"

allow contains {"rule": "chosen"} if verdict == "allow"

deny contains {"rule": "chosen"} if verdict == "deny"
