# allow: GET https://a.shop.test/x
# deny: POST https://a.shop.test/x
package egress

may := {
	"a.shop.test": {"GET", "HEAD"},
	"b.shop.test": {"GET", "HEAD", "POST"},
}

allow contains {"rule": "methods"} if input.http.method in may[input.destination.host]
