# from: an agent's network rules, a function with two bodies
# allow: https://shop.test/
# allow: https://x.files.test/
# deny: https://xfiles.test/
package egress

import rego.v1

known := ["shop.test", "*.files.test"]

allow contains {"rule": "known"} if {
	some pattern in known
	fits(input.destination.host, pattern)
}

fits(name, pattern) if name == pattern

fits(name, pattern) if {
	startswith(pattern, "*.")
	endswith(name, trim_prefix(pattern, "*"))
}
