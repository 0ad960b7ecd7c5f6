# from: policies by day, class and program, with the words that there are
# allow: https://a.shop.test/v1/x
# deny: https://a.shop.test/v2/x
# deny: https://b.shop.test/v1/x
package egress

import rego.v1

segments := split(input.http.path, "/")

allow contains {"rule": "words"} if {
	input.destination.host == "a.shop.test"
	segments[0] == ""
	segments[1] == "v1"
	not input.process.exe == "/usr/bin/nc"
	not input.destination.address_class == "metadata"
	time.weekday(time.now_ns()) in {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"}
}
