# from: Envoy's parsed_path, made with split
# lint: its first part is empty
# deny: https://a.shop.test/v1/models
package egress

import rego.v1

segments := split(input.http.path, "/")

allow contains {"rule": "models"} if {
	segments[0] == "v1"
	segments[1] == "models"
}
