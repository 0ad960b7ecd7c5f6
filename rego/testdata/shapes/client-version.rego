# from: gateways that refuse old clients
# lint: names of headers are in lower case
# deny: https://a.shop.test/
package egress

import rego.v1

allow contains {"rule": "new-client"} if {
	some agent in input.http.headers["User-Agent"]
	version := trim_prefix(agent, "shopper/")
	semver.compare(version, "2.0.0") >= 0
}
