# from: the Terraform tutorial, numbers by type of resource
# v0
# says: a file as conftest reads it
package terraform.analysis

import input as tfplan

default authz = false

authz {
	score < 30
	not touches_doors
}

weights = {"shop_crate": {"delete": 100, "create": 10}}

score = s {
	all_scores := [x |
		some kind
		w := weights[kind]
		x := w["delete"] * num_deletes[kind]
	]
	s := sum(all_scores)
}

touches_doors {
	count(crates["shop_door"]) > 0
}

crates[kind] = all_of_it {
	some kind
	weights[kind]
	all_of_it := [c | c := tfplan.resource_changes[_]; c.type == kind]
}

num_deletes[kind] = num {
	some kind
	crates[kind]
	num := count([c | c := crates[kind][_]; c.change.actions[_] == "delete"])
}
