# Hosts, compared as egressd compares them. It does the same by built-ins of its
# own, and checks A-labels too.
package egressd.host

# matches holds where pattern is the host itself, "*.SUFFIX" above it, "*{1}.NAME"
# directly above it, "BEGINNING*.NAME" or "*END.NAME" of its first label, "*", or an
# address or prefix that holds it. Neither has a port. What is no host is in no
# pattern; what is no pattern is an error.
default matches(_, _) := false

matches(host, pattern) if covers(canonical_or_none(host), checked(pattern))

# any holds where one of a set or an array of patterns matches.
default any(_, _) := false

any(host, patterns) if {
	all := {checked(pattern) | some pattern in patterns}
	some pattern in all
	covers(canonical_or_none(host), pattern)
}

# canonical is the one spelling of a host; what is no host is an error.
canonical(host) := name if {
	name := canonical_or_none(host)
	name != ""
} else := to_number(sprintf("%q is no host", [host]))

canonical_or_none(host) := name if {
	is_name(host)
	name := trim_suffix(lower(host), ".")
} else := host if {
	regex.match(ipv4, host)
} else := regex.replace(prefix, `^::ffff:|/(32|128)$`, "") if {
	bare := trim_suffix(trim_prefix(host, "["), "]")
	regex.match(`^[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*$`, bare)
	host in {bare, sprintf("[%s]", [bare])}
	net.cidr_is_valid(sprintf("%s/128", [bare]))
	some prefix in net.cidr_merge([sprintf("%s/128", [bare])])
} else := ""

octet := `(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])`

ipv4 := sprintf(`^(%s\.){3}%s$`, [octet, octet])

is_name(text) if {
	count(text) <= 254
	count(trim_suffix(text, ".")) <= 253
	regex.match(`^([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.?$`, text)
	not regex.match(`(^|\.)([0-9]+|0[xX][^.]*)\.?$`, text)
}

covers(host, pattern) if {
	pattern == "*"
	host != ""
}

covers(host, pattern) if host == pattern

covers(host, pattern) if {
	startswith(pattern, "*.")
	is_name(host)
	endswith(host, substring(pattern, 1, -1))
}

covers(host, pattern) if {
	startswith(pattern, "*{1}.")
	is_name(host)
	dot := indexof(host, ".")
	dot > 0
	substring(host, dot, -1) == substring(pattern, 4, -1)
}

covers(host, pattern) if {
	regex.match(one_label, pattern)
	[before, after] := split(split(pattern, ".")[0], "*")
	is_name(host)
	dot := indexof(host, ".")
	dot > 0
	label := substring(host, 0, dot)
	startswith(label, before)
	endswith(label, after)
	substring(host, dot, -1) == substring(pattern, indexof(pattern, "."), -1)
}

covers(host, pattern) if {
	contains(pattern, "/")
	host != ""
	not is_name(host)
	net.cidr_contains(pattern, host)
}

checked("*") := "*"

checked(pattern) := sprintf("*.%s", [trim_suffix(lower(suffix), ".")]) if {
	startswith(pattern, "*.")
	suffix := substring(pattern, 2, -1)
	is_name(suffix)
}

checked(pattern) := trim_suffix(lower(pattern), ".") if starred(pattern)

# starred holds for a pattern with one star within its first label.
starred(pattern) if {
	startswith(pattern, "*{1}.")
	is_name(substring(pattern, 5, -1))
}

starred(pattern) if {
	regex.match(one_label, pattern)
	not startswith(lower(pattern), "xn--")
	is_name(replace(pattern, "*", "a"))
}

# one_label is a beginning or an end of a label, and two labels behind it.
one_label := `^([^.*]+\*|\*[^.*{]+)\.[^.*]+\.[^*]*[^.*]\.?$`

checked(pattern) := pattern if {
	contains(pattern, "/")
	net.cidr_is_valid(pattern)
}

checked(pattern) := canonical(pattern) if {
	not contains(pattern, "/")
	not contains(pattern, "*")
	not startswith(pattern, "[")
}

checked(pattern) := to_number(sprintf("%q is no pattern", [pattern])) if {
	contains(pattern, "/")
	not net.cidr_is_valid(pattern)
}

checked(pattern) := to_number(sprintf("%q is no pattern", [pattern])) if startswith(pattern, "[")

checked(pattern) := to_number(sprintf("%q is no pattern", [pattern])) if {
	contains(pattern, "*")
	pattern != "*"
	not startswith(pattern, "*.")
	not contains(pattern, "/")
	not starred(pattern)
}

checked(pattern) := to_number(sprintf("%q is no pattern", [pattern])) if {
	startswith(pattern, "*.")
	not is_name(substring(pattern, 2, -1))
}
