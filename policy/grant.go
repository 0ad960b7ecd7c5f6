package policy

import (
	"fmt"
)

// A Grant is a line that somebody has added to a file for a while.
//
// An Allow counts like a line of the top list "allow": the most specific line decides, a deny wins a tie, all ceilings
// must include it, and the tests of the files must pass. An Allow for one sandbox counts as a line of that sandbox's
// list, too. It makes no exception to the baseline.
//
// A Deny is asked before all lists of the file, so no line is more specific. The tests of the files do not apply to it;
// otherwise nobody could deny a host that a test promises.
type Grant struct {
	ID     string  // of the rule in decisions; one with a colon is that of no line
	Effect Verdict // Allow or Deny
	Opening
	Sandbox string // whom alone it is for; empty: everybody

	// Over reports whether the time of an Allow has ended. An ended Allow opens nothing, even before a policy without it
	// is in force. Every decision about the line calls Over. A nil Over means that the Allow never ends.
	Over func() bool
}

func (g *Grant) compile(ech bool) rule {
	line := g.Line(g.ID)
	compiled := line.compile(g.Effect, ech)
	compiled.sandbox = g.Sandbox
	if g.Effect == Allow {
		compiled.over = g.Over
	}
	return compiled
}

// Text is what the digest covers of the grant.
func (g *Grant) Text() []byte {
	return fmt.Appendf(nil, "grant %q %s %q %q", g.ID, g.Effect, g.String(), g.Sandbox)
}
