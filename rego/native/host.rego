# Hosts, compared as the rule file compares them.
package egressd.host

# matches holds where pattern is the host itself, "*.SUFFIX" above it, "*{1}.NAME"
# directly above it, "BEGINNING*.NAME" or "*END.NAME" of its first label, "*", or an
# address or prefix that holds it. Neither has a port.
matches(host, pattern) := egressd.host_matches(host, pattern)

# any holds where one of a set or an array of patterns matches.
any(host, patterns) := egressd.host_any(host, patterns)

# canonical is the one spelling of a host; what is no host is an error.
canonical(host) := egressd.host_canonical(host)
