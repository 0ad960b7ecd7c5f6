package file

import (
	"context"

	"github.com/egressd/egressd/policy"
)

// Unasked returns a problem for each rule under "ask" that asks only about some requests, if no rule allows the others. The
// policy p of this file then denies the TLS connection before anybody is asked.
func (f *File) Unasked(p *policy.Policy) (problems policy.FileError) {
	written := p.AsWritten()
	for i := range f.Ask {
		rule := &f.Ask[i]
		if rule.Conditional() && rule.Pattern.HasPort(443) && f.deniesTunnel(written, rule.Pattern.At(443)) {
			problems = append(problems, policy.Problem{
				File: f.name, Line: max(rule.At.Line, 1), Column: max(rule.At.Column, 1),
				Message: rule.ID + " asks only about some requests, and no line allows the others, so TLS to " + rule.Pattern.Host() +
					" is denied before anybody is asked; write the others under allow, or leave out methods and paths; for plain HTTP alone write port 80",
			})
		}
	}
	return problems.Sorted()
}

// deniesTunnel reports whether no rule of any layer speaks of tunnels to a pattern, whichever sandbox asks.
func (f *File) deniesTunnel(p *policy.Policy, to policy.Pattern) bool {
	names := []string{"default"}
	if len(f.Sandboxes) > 0 {
		names = nil
	}
	for i := range f.Sandboxes {
		names = append(names, f.Sandboxes[i].Name)
	}
	for _, name := range names {
		for destination := range to.Samples() {
			r := policy.Request{Sandbox: policy.Sandbox{Name: name}, Via: policy.ViaConnect, Destination: destination}
			if d := p.Decide(context.Background(), &r); d.Verdict != policy.Deny || d.Class != policy.DefaultDeny {
				return false
			}
		}
	}
	return true
}
