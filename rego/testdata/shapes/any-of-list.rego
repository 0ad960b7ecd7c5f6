# v0
# rewrite: true in LIST
package egress

allow[{"rule": "shop"}] {
	any([startswith(input.http.path, p) | p := data.paths[_]])
}
