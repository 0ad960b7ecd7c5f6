# from: domain lists that are compared alone
# lint: host.matches
# allow: https://shop.test/
# deny: https://x.files.test/
package egress

import rego.v1

known := ["shop.test", "*.files.test"]

allow contains {"rule": "known"} if input.destination.host in known
