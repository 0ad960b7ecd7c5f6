# from: the same with a set of another name, as egressd reads it
# allow: https://a.shop.test/x
# deny: https://evil.test/x
# deny: a.shop.test:25
package egress

import rego.v1

allow contains {"rule": "clean"} if count(problems) == 0

problems contains "mail" if input.destination.port == 25

problems contains "foreign" if not host.matches(input.destination.host, "*.shop.test")
