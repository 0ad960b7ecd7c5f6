# from: approvals
# allow: https://docs.till.test/
# ask: https://new.shop.test/
# deny: https://pay.shop.test/
package egress

import rego.v1

allow contains {"rule": "docs"} if input.destination.host == "docs.till.test"

ask contains {"rule": "new", "reason": "nobody has looked at it"} if host.matches(input.destination.host, "*.shop.test")

allow contains {"rule": "shop"} if host.matches(input.destination.host, "*.shop.test")

deny contains {"rule": "pay"} if input.destination.host == "pay.shop.test"
