# v0
# allow: https://b.shop.test/
# deny: https://d.shop.test/
package egress

sources = {"a.shop.test", "b.shop.test", "c.shop.test"}

allow[reason] {
	sources[input.destination.host]
	reason := {"rule": "sources", "reason": sprintf("%s is a source", [input.destination.host])}
}
