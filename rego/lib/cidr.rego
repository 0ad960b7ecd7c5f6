# net.cidr_contains under a name that package egressd.net does not hide.
package egressd.cidr

has(prefix, address) := net.cidr_contains(written(prefix), address)

written(prefix) := prefix if contains(prefix, "/")

written(prefix) := sprintf("%s/32", [prefix]) if {
	not contains(prefix, "/")
	not contains(prefix, ":")
}

written(prefix) := sprintf("%s/128", [prefix]) if {
	not contains(prefix, "/")
	contains(prefix, ":")
}

# list refuses what is neither a set nor an array: to_number fails on nothing.
list(x) := x if {
	is_array(x)
} else := x if {
	is_set(x)
} else := to_number(sprintf("%v is neither a set nor an array", [x]))
