# from: deploy windows
# allow: https://a.shop.test/
# deny: https://b.shop.test/
package egress

import rego.v1

weekend := {"Saturday", "Sunday"}

allow contains {"rule": "always"} if input.destination.host == "a.shop.test"

allow contains {"rule": "weekend"} if {
	input.destination.host == "b.shop.test"
	time.weekday(time.now_ns()) in weekend
	[hour, _, _] := time.clock([time.now_ns(), "Europe/Berlin"])
	hour > 30
}
