# from: gateways, a function of the request
# says: write "yes" in input.http.headers["x-shop"]
package egress

import rego.v1

marked(request) if request.headers["x-shop"] == "yes"

allow contains {"rule": "marked"} if marked(input.http)
