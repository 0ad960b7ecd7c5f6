package policy

import (
	"fmt"
)

// A Grant is a line that somebody has added to a file for a while.
//
// An Allow is as if it stood in the list "allow" at the top: the most specific line decides,
// at a tie a deny, ceilings have to have room for it, and the tests of the files have to stay
// green. For one sandbox, it stands in the list of that sandbox as well, where it has one. It
// makes no exception to the baseline.
//
// A Deny is asked before all lists of the file, so that no line of them is more specific. The
// tests of the files are not about it: else no host that they promise could be denied in a hurry.
type Grant struct {
	ID      string  // of the rule in decisions; one with a colon is that of no line
	Effect  Verdict // Allow or Deny
	Pattern Pattern
	Sandbox string // whom alone it is for; empty: everybody

	// Over reports that an Allow opens nothing any more, whether or not somebody has put a
	// policy without it in force by then. It is called by every decision that the line is
	// about. Nil: never.
	Over func() bool
}

func (g *Grant) compile(ech bool) rule {
	line := Rule{ID: g.ID, Pattern: g.Pattern}
	compiled := line.compile(g.Effect, ech)
	compiled.sandbox = g.Sandbox
	if g.Effect == Allow {
		compiled.over = g.Over
	}
	return compiled
}

// Text is what the digest covers of the grant.
func (g *Grant) Text() []byte {
	return fmt.Appendf(nil, "grant %q %s %s %q", g.ID, g.Effect, g.Pattern, g.Sandbox)
}
