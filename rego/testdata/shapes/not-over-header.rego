# from: Envoy policies that require a header
# lint: this is undefined, and not true
# allow: https://a.shop.test/
package egress

import rego.v1

allow contains {"rule": "shop"} if input.destination.host == "a.shop.test"

deny contains {"rule": "marked"} if not "yes" in input.http.headers["x-shop"]
