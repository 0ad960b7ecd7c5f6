# lint: a credential
# deny: https://a.shop.test/x
package egress

allow contains {"rule": "claims"} if {
	[_, claims, _] := io.jwt.decode(bearer)
	claims.scope == "shop"
}

bearer := token if {
	value := input.http.headers.authorization[0]
	token := substring(value, count("Bearer "), -1)
}
