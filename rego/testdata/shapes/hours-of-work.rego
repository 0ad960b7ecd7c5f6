# from: policies by the clock, open by default
# says: allow contains {"rule": "all"}
package acme.timebased

import future.keywords.if

default allow = true

allow if is_business_hours

is_business_hours if {
	hour := time.clock([time.now_ns()])[0]
	hour >= 9
	hour < 18
}
