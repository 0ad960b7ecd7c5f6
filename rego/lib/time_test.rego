package egressd.time_test

import data.egressd.time as clock

# 2026-11-20 is a Friday; 12:00 UTC is 13:00 in Berlin.
friday_noon := time.parse_rfc3339_ns("2026-11-20T12:00:00Z")

test_office_hours if {
	clock.office_hours(friday_noon, "Europe/Berlin")
	not clock.office_hours(time.parse_rfc3339_ns("2026-11-20T16:00:00Z"), "Europe/Berlin")
	not clock.office_hours(time.parse_rfc3339_ns("2026-11-20T07:59:59Z"), "Europe/Berlin")
	clock.office_hours(time.parse_rfc3339_ns("2026-11-20T08:00:00Z"), "Europe/Berlin")
	not clock.office_hours(time.parse_rfc3339_ns("2026-11-21T12:00:00Z"), "Europe/Berlin")
}

test_summer_time if {
	clock.between(time.parse_rfc3339_ns("2026-07-01T07:30:00Z"), "Europe/Berlin", "09:00", "10:00")
	not clock.between(time.parse_rfc3339_ns("2026-12-01T07:30:00Z"), "Europe/Berlin", "09:00", "10:00")
}

test_across_midnight if {
	clock.between(time.parse_rfc3339_ns("2026-11-20T23:30:00Z"), "UTC", "22:00", "06:00")
	clock.between(time.parse_rfc3339_ns("2026-11-20T05:59:00Z"), "UTC", "22:00", "06:00")
	not clock.between(time.parse_rfc3339_ns("2026-11-20T06:00:00Z"), "UTC", "22:00", "06:00")
}

test_on if {
	clock.on(friday_noon, "UTC", {"Friday"})
	not clock.on(friday_noon, "UTC", {"Monday"})
}
