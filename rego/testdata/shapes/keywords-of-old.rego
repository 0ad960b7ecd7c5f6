# from: policies of the years between, import future.keywords
# allow: https://a.shop.test/
# deny: https://c.shop.test/
package egress

import future.keywords.contains
import future.keywords.every
import future.keywords.if
import future.keywords.in

allow contains {"rule": "listed"} if input.destination.host in ["a.shop.test", "b.shop.test"]
