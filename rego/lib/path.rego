# Paths of requests, compared as the rule file compares them.
package egressd.path

# matches holds where the path lies under the pattern: "*" is part of a segment,
# "**" any number of segments. A path that servers read in two ways lies under none.
default matches(_, _) := false

matches(path, pattern) if {
	canonical(path)
	regex.match(expression(pattern), path)
}

# any holds where one of the patterns matches.
default any(_, _) := false

any(path, patterns) if {
	some pattern in list(patterns)
	matches(path, pattern)
}

# escaped is an escape, in upper case, of a byte that needs one and that no server
# gives a meaning.
escaped := `%(2[0-46-9AB]|3[A-F]|40|5[BDE]|60|7[BCD]|[8-F][0-9A-F])`

plain := `[^\x00-\x20\x7f-\x{10ffff}%/\\;?#]`

canonical(path) if {
	regex.match(sprintf(`^/(((%s|%s)+/)*(%s|%s)*)$`, [plain, escaped, plain, escaped]), path)
	not regex.match(`/\.{1,2}(/|$)`, path)
}

# expression is the pattern as a regular expression over "/" and the path, each
# segment with the slash before it.
expression(pattern) := concat("", array.flatten(["^", [segment(s) | some s in split(trim_prefix(checked(pattern), "/"), "/")], "$"]))

segment("**") := `(/[^/]*)*`

segment(s) := sprintf("/%s", [concat("[^/]*", [literal(part) | some part in split(s, "*")])]) if s != "**"

# literal escapes what a regular expression would read otherwise.
literal(part) := regex.replace(part, `([.+^$(){}|\[\]\\])`, `\$1`)

checked(pattern) := pattern if {
	startswith(pattern, "/")
	not regex.match(`[^/]\*\*|\*\*[^/]`, pattern)
	canonical(pattern)
} else := to_number(sprintf("%q is no pattern of paths", [pattern]))

# list refuses what is neither a set nor an array: to_number fails on nothing.
list(x) := x if {
	is_array(x)
} else := x if {
	is_set(x)
} else := to_number(sprintf("%v is neither a set nor an array", [x]))
