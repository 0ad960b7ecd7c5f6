# from: gateways, object.get with a path
# says: write "yes" in input.http.headers["x-shop"]
package egress

import rego.v1

allow contains {"rule": "marked"} if {
	mark := object.get(input, ["http", "headers", "x-shop"], "")
	mark == "yes"
}
