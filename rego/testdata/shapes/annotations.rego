# from: policies with annotations
# allow: https://a.shop.test/
# deny: https://c.shop.test/

# METADATA
# title: what the shop may reach
# description: one host
# authors:
#   - Ada
package egress

import rego.v1

# METADATA
# title: model
# entrypoint: true
# custom:
#   severity: LOW
allow contains {"rule": "model"} if input.destination.host == "a.shop.test"
