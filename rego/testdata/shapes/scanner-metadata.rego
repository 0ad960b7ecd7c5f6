# from: Trivy's checks, annotations with a schema and a result of the library
# says: write it as deny in package egress
package builtin.shopfile.SF001

import rego.v1

import data.lib.shopfile

deny contains res if {
	some order in shopfile.orders
	order.Cmd == "user"
	res := result.new("a keeper has to be named", order)
}
