# from: policies that split the path
# allow: https://a.shop.test/v1/models
# deny: https://a.shop.test/v2/models
# deny: https://b.shop.test/v1/models
package egress

import rego.v1

segments := split(trim_prefix(input.http.path, "/"), "/")

allow contains {"rule": "models"} if {
	input.destination.host == "a.shop.test"
	segments[0] == "v1"
	count(segments) < 4
}
