# from: conftest's names after the underscore, in package egress
# says: nothing reads deny_mail
package egress

import rego.v1

allow contains {"rule": "all"}

deny_mail contains {"rule": "mail"} if input.destination.port == 25
