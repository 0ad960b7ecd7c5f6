package policy

import (
	"context"
	"fmt"
	"slices"
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

// text is what the digest covers.
func (g *Grant) text() []byte {
	return fmt.Appendf(nil, "grant %q %s %s %q", g.ID, g.Effect, g.Pattern, g.Sandbox)
}

func withoutDenials(grants []Grant) []Grant {
	return slices.DeleteFunc(slices.Clone(grants), func(g Grant) bool { return g.Effect != Allow })
}

// addGrants adds what is granted and denied for a while. What is neither is denied.
func (rs *rules) addGrants(grants []Grant, ech bool) {
	for i := range grants {
		g := &grants[i]
		if g.Effect == Allow {
			rs.own.add(g.Pattern, g.compile(ech))
			continue
		}
		if rs.first == nil {
			rs.first = newIndex()
		}
		denied := *g
		denied.Effect = Deny
		rs.first.add(g.Pattern, denied.compile(false))
	}
	if rs.first != nil {
		rs.first.finish()
	}
}

// addOwnGrants adds what is allowed to one sandbox alone to its own list.
func (rs *rules) addOwnGrants(grants []Grant, name string) {
	for i := range grants {
		if g := &grants[i]; g.Effect == Allow && g.Sandbox == name {
			rs.own.add(g.Pattern, g.compile(false))
		}
	}
}

// A Reach is how much of what a pattern holds a sandbox may reach, by [Pattern.Samples].
type Reach struct {
	Sandbox          string
	Allowed, Refused int      // how many
	Open, Shut       string   // the first of each
	By, Why          Decision // about that
	Asked            string   // the first that a person would be asked about
	Asks             Decision // about that; its zero value where there is none
}

// Reach asks for what pattern holds, as a tunnel of who, until ctx is done.
func (p *Policy) Reach(ctx context.Context, pattern Pattern, who Sandbox) Reach {
	return p.reach(ctx, pattern, who, func(*Reach) bool { return true })
}

// Opens reports whether who may reach something of what pattern holds. If not, why is
// about all of it.
func (p *Policy) Opens(ctx context.Context, pattern Pattern, who Sandbox) (opens bool, why Reach) {
	r := p.reach(ctx, pattern, who, func(r *Reach) bool { return r.Allowed == 0 })
	return r.Allowed > 0, r
}

// OpensAll reports whether who may reach all of what pattern holds.
func (p *Policy) OpensAll(ctx context.Context, pattern Pattern, who Sandbox) bool {
	r := p.reach(ctx, pattern, who, func(r *Reach) bool { return r.Refused == 0 })
	return r.Refused == 0 && r.Allowed > 0
}

// reach goes on as long as more says so.
func (p *Policy) reach(ctx context.Context, pattern Pattern, who Sandbox, more func(*Reach) bool) Reach {
	r := Reach{Sandbox: who.Name}
	for dst := range pattern.Samples() {
		if ctx.Err() != nil {
			break
		}
		d := p.Decide(ctx, &Request{Sandbox: who, Via: ViaConnect, Destination: dst, Usage: new(Usage)})
		if d.Verdict.Action() == "allow" {
			if r.Allowed++; r.Allowed == 1 {
				r.Open, r.By = dst.String(), d
			}
		} else if r.Refused++; r.Refused == 1 {
			r.Shut, r.Why = dst.String(), d
		}
		if d.Verdict == Ask && r.Asked == "" {
			r.Asked, r.Asks = dst.String(), d
		}
		if !more(&r) {
			break
		}
	}
	return r
}
