package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/sandbox"
)

// A PolicyDifference is a set of requests that two policies decide differently, as commands show it.
type PolicyDifference struct {
	Change  policy.Change `json:"change"`
	Beyond  bool          `json:"beyond,omitempty"` // the boundary does not allow it
	Hosts   string        `json:"hosts"`            // a pattern, without the hosts that another line names more closely
	Leads   string        `json:"leads_to,omitempty"`
	Sandbox string        `json:"sandbox,omitempty"` // empty: it holds for each
	Ports   []uint16      `json:"ports"`             // one of each stretch of ports that the rules tell apart
	Methods []string      `json:"methods,omitempty"` // empty: the connection as a whole
	Example string        `json:"example"`           // a request that both policies have decided
	Was     Side          `json:"was"`
	Now     Side          `json:"now"`
}

// A Side is what one of the policies says of the example.
type Side struct {
	Verdict string       `json:"verdict"`
	Rule    string       `json:"rule"`
	Layer   policy.Layer `json:"layer"`
	Class   policy.Class `json:"class,omitempty"`

	// MaxBytesUp bounds what one request or tunnel sends, or what all send in the time of a budget; 0 for any number.
	MaxBytesUp int64 `json:"max_bytes_up,omitempty"`
}

// Compare compares what two configurations decide, and marks what the second opens beyond what within allows. within may
// be nil. Why the list may not be whole is in unsure.
func Compare(ctx context.Context, old, next, within *config.Config) (all []PolicyDifference, unsure []string, err error) {
	var s policy.Sides
	for _, side := range []struct {
		into *(*policy.Policy)
		from *config.Config
	}{{&s.Old, old}, {&s.New, next}, {&s.Within, within}} {
		if side.from == nil {
			continue
		}
		side.from.Patient = true
		if *side.into, err = side.from.Compile(); err != nil {
			return nil, nil, err
		}
		s.Sandboxes = addSandboxes(s.Sandboxes, side.from)
	}
	c := s.Compare(ctx)
	for i := range c.Differences {
		d := &c.Differences[i]
		all = append(all, PolicyDifference{
			Change: d.Change, Beyond: d.Beyond, Hosts: d.Hosts.Host(), Leads: d.Through, Sandbox: d.Sandbox, Ports: d.Ports, Methods: d.Methods,
			Example: exampleText(&d.Request), Was: sideOf(&d.Was), Now: sideOf(&d.Now),
		})
	}
	all = append(all, compareBudgets(old.File.Budgets, next.File.Budgets, within != nil)...)
	return all, c.Unsure, nil
}

// compareBudgets compares the budgets of two files. Those with the same hosts and time are one. No boundary has budgets: if
// there is one, everything that more may be sent by is beyond it.
func compareBudgets(old, next []file.SpanLimit, bounded bool) (all []PolicyDifference) {
	type pair struct{ was, now *file.SpanLimit }
	pairs, order := map[string]*pair{}, []string{}
	at := func(b *file.SpanLimit) *pair {
		key := fmt.Sprint(b.Hosts, " in ", b.Per)
		if pairs[key] == nil {
			pairs[key], order = &pair{}, append(order, key)
		}
		return pairs[key]
	}
	for i := range old {
		at(&old[i]).was = &old[i]
	}
	for i := range next {
		at(&next[i]).now = &next[i]
	}
	side := func(b *file.SpanLimit) Side {
		s := Side{Verdict: policy.Allow.Action(), Rule: "default", Layer: policy.Builtin}
		if b != nil {
			s.Rule, s.Layer, s.MaxBytesUp = b.Name, policy.User, b.Up
		}
		return s
	}
	for _, key := range order {
		p := pairs[key]
		d := PolicyDifference{Change: policy.Tightens, Ports: []uint16{}, Example: "what is sent to " + key, Was: side(p.was), Now: side(p.now)}
		some := cmp.Or(p.now, p.was)
		for _, h := range some.Hosts {
			d.Hosts = strings.TrimPrefix(d.Hosts+", "+h.String(), ", ")
		}
		switch {
		case p.was != nil && p.now != nil && p.was.Up == p.now.Up:
			continue
		case p.now == nil || p.was != nil && p.now.Up > p.was.Up:
			d.Change, d.Beyond = policy.Loosens, bounded
		}
		all = append(all, d)
	}
	return all
}

// addSandboxes adds those that c lists, or the one that there is if it lists none.
func addSandboxes(all []policy.Sandbox, c *config.Config) []policy.Sandbox {
	var own []policy.Sandbox
	for i := range c.File.Sandboxes {
		one := config.EntryOf(&c.File.Sandboxes[i]).Sandbox()
		if t, ok := policy.ParseTemplate(one.Name); ok {
			one.Name, one.Template = t.Name("any"), one.Name
		}
		own = append(own, one)
	}
	if len(own) == 0 {
		own = []policy.Sandbox{{Name: sandbox.Default}}
	}
	for _, one := range own {
		if !slices.ContainsFunc(all, func(known policy.Sandbox) bool { return known.Name == one.Name }) {
			all = append(all, one)
		}
	}
	return all
}

func sideOf(d *policy.Decision) Side {
	return Side{Verdict: d.Verdict.Action(), Rule: d.Rule, Layer: d.Layer, Class: d.Class, MaxBytesUp: d.MaxBytesUp}
}

func exampleText(r *policy.Request) string {
	text := requestText(r)
	if r.HTTP != nil {
		text = strings.Replace(text, r.Destination.String(), strings.TrimSuffix(strings.TrimSuffix(r.Destination.String(), ":443"), ":80"), 1)
	}
	return text
}
