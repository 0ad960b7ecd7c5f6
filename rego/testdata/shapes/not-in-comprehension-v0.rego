# from: Gatekeeper's way to say none of
# v0
# allow: https://a.shop.test/
# deny: https://x.evil.test/
package egress

blocked = [".evil.test", ".bad.test"]

allow[{"rule": "rest"}] {
	hits := [b | b := blocked[_]; endswith(input.destination.host, b)]
	count(hits) == 0
}
