# from: guards against server-side request forgery
# allow: https://a.shop.test/
# deny: https://169.254.169.254/
# deny: https://192.168.0.7/
package egress

import rego.v1

allow contains {"rule": "all"}

deny contains {"rule": "special", "reason": net.class(address)} if {
	some address in input.destination.addresses
	net.class(address) != "public"
}
