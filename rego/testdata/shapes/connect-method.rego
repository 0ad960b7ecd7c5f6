# from: proxies that decide the CONNECT
# lint: a CONNECT is a tunnel
# deny: https://a.shop.test/
package egress

import rego.v1

allow contains {"rule": "tunnel"} if {
	input.http.method == "CONNECT"
	input.destination.host == "a.shop.test"
}
