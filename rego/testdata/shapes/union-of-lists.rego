# from: lists that are put together
# data: {"base": ["a.shop.test"], "more": {"ci": ["b.shop.test"], "dev": ["c.shop.test"]}}
# allow: https://a.shop.test/
# allow: https://c.shop.test/
# deny: https://d.shop.test/
package egress

import rego.v1

hosts := {h | some h in data.base} | {h | some list in data.more; some h in list}

allow contains {"rule": "listed", "reason": sprintf("one of %d", [count(hosts)])} if input.destination.host in hosts
