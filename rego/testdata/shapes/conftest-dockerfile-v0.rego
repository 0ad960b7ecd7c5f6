# from: conftest for Dockerfiles, an input that is a list
# v0
# says: write it as deny in package egress
package main

banned = ["attic"]

deny[msg] {
	input[i].Cmd == "from"
	val := input[i].Value
	contains(val[i], banned[_])
	msg = sprintf("not this crate: %s", [val])
}
