# from: older policies about TLS
# v0
# allow: https://a.shop.test/
# deny: https://b.shop.test/
package egress

allow[{"rule": "known"}] {
	names := {"a.shop.test": "blue"}
	names[input.destination.host] == "blue"
	not old_hello
}

old_hello {
	input.tls.alpn[_] == "spdy/3"
}
