# The time of a request, in a time zone such as "Europe/Berlin".
package egressd.time

# office_hours holds from Monday to Friday, 09:00 to 17:00.
default office_hours(_, _) := false

office_hours(ns, zone) if {
	on(ns, zone, {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday"})
	between(ns, zone, "09:00", "17:00")
}

# on holds on the days that are named, in English.
on(ns, zone, days) := time.weekday([ns, zone]) in weekdays(days)

# weekdays refuses what is no set or array of days: to_number fails on nothing.
weekdays(days) := days if {
	count([day | some day in days]) == count(days)
	not is_object(days)
	every day in days {
		day in {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"}
	}
} else := to_number(sprintf("%v are no days of the week", [days]))

# between holds from one minute, written HH:MM, until right before another one;
# across midnight where the first is the later.
default between(_, _, _, _) := false

between(ns, zone, from, until) if {
	minute(from) <= minute(until)
	now := minute_of(ns, zone)
	minute(from) <= now
	now < minute(until)
}

between(ns, zone, from, until) if {
	minute(from) > minute(until)
	minute_of(ns, zone) >= minute(from)
}

between(ns, zone, from, until) if {
	minute(from) > minute(until)
	minute_of(ns, zone) < minute(until)
}

minute_of(ns, zone) := (clock[0] * 60) + clock[1] if {
	clock := time.clock([ns, zone])
}

# minute refuses what is not a time of day: to_number fails on nothing.
minute(hhmm) := (to_number(hour[1]) * 60) + to_number(hour[2]) if {
	hour := regex.find_all_string_submatch_n(`^([01][0-9]|2[0-3]):([0-5][0-9])$`, hhmm, 1)[0]
} else := to_number(sprintf("%s is not HH:MM", [hhmm]))
