# from: gateways that look at the query
# allow: https://a.shop.test/x?page=2
# deny: https://a.shop.test/x?admin=1
package egress

import rego.v1

allow contains {"rule": "shop"} if input.destination.host == "a.shop.test"

deny contains {"rule": "no-admin"} if {
	flags := urlquery.decode_object(input.http.query)
	"admin" in object.keys(flags)
}
