# from: policies that walk a document
# data: {"tree": {"north": {"hosts": ["a.shop.test"]}, "south": {"deep": {"hosts": ["b.shop.test"]}}}}
# allow: https://b.shop.test/
# deny: https://north/
package egress

import rego.v1

names contains name if {
	walk(data.tree, [path, value])
	path[count(path) - 1] == "hosts"
	some name in value
}

allow contains {"rule": "tree"} if input.destination.host in names
