# from: Envoy policies that name a header in a rule
# says: lower wants a text
package egress

import rego.v1

import input.http as req

mark := req.headers["x-shop"]

allow contains {"rule": "marked"} if lower(mark) == "yes"
