# from: policies whose allow is that nothing denies
# says: allow contains {"rule": "NAME"}
package egress

import rego.v1

default allow := false

allow if count(deny) == 0

deny contains {"rule": "mail"} if input.destination.port == 25
