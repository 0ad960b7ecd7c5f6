# Paths of requests, compared as the rule file compares them.
package egressd.path

# matches holds where the path lies under the pattern: "*" is part of a segment,
# "**" any number of segments. A path that servers read in two ways lies under none.
matches(path, pattern) := egressd.path_matches(path, pattern)

# any holds where one of the patterns matches.
any(path, patterns) := egressd.path_any(path, patterns)
