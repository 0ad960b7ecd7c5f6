package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
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

	port uint16 // of Example
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
		s.Sandboxes = side.from.AddSandboxes(s.Sandboxes)
	}
	all, unsure = ComparePolicies(ctx, s)
	return append(all, compareBudgets(old.File.Budgets, next.File.Budgets, within != nil)...), unsure, nil
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

// ComparePolicies is [Compare] for compiled policies.
func ComparePolicies(ctx context.Context, s policy.Sides) (all []PolicyDifference, unsure []string) {
	c := s.Compare(ctx)
	for i := range c.Differences {
		d := &c.Differences[i]
		all = append(all, PolicyDifference{
			Change: d.Change, Beyond: d.Beyond, Hosts: d.Hosts.Host(), Leads: d.Through, Sandbox: d.Sandbox, Ports: d.Ports, Methods: d.Methods,
			Example: exampleText(&d.Request), Was: sideOf(&d.Was), Now: sideOf(&d.Now),
			port: d.Request.Destination.Port,
		})
	}
	return all, c.Unsure
}

// ToldWithin bounds how long a person waits for what a change opens.
const ToldWithin = 2 * time.Second

// Told compares two policies for at most two seconds, and returns [Sentence]. If the time was too short, Told compares
// the hosts of near alone, for two seconds more.
func Told(ctx context.Context, s policy.Sides, near ...policy.Pattern) string {
	whole, cancel := context.WithTimeout(ctx, ToldWithin)
	defer cancel()
	all, unsure := ComparePolicies(whole, s)
	if whole.Err() == nil || len(near) == 0 {
		return Sentence(all, unsure)
	}
	part, cancel := context.WithTimeout(ctx, ToldWithin)
	defer cancel()
	s.About = near
	all, _ = ComparePolicies(part, s)
	return Sentence(all, unsure)
}

// sentenceExamples is how many examples of each change a sentence names.
const sentenceExamples = 3

// Sentence says in one line what a change of a policy opens and closes, with examples. unsure is why there may be more.
func Sentence(all []PolicyDifference, unsure []string) string {
	var parts []string
	for i := 0; i < len(all); {
		change, n := all[i].Change, 0
		var examples []string
		for ; i < len(all) && all[i].Change == change; i++ {
			if n++; n <= sentenceExamples {
				examples = append(examples, all[i].text())
			}
		}
		text := string(change) + " " + strings.Join(examples, ", ")
		if n > sentenceExamples {
			text += fmt.Sprintf(" and %d more", n-sentenceExamples)
		}
		parts = append(parts, text)
	}
	text := strings.Join(parts, "; ")
	if len(parts) == 0 {
		text = "changes no decision that was compared"
		if len(unsure) == 0 {
			text = "changes no decision"
		}
	}
	if len(unsure) > 0 {
		text += "; there may be more, since " + strings.Join(unsure, ", and ")
	}
	return text
}

// text is the example with its other ports, what it leads to and the sandbox.
func (d *PolicyDifference) text() string {
	text := d.Example
	if others := slices.DeleteFunc(slices.Clone(d.Ports), func(port uint16) bool { return port == d.port }); len(others) > 0 {
		text += fmt.Sprintf(" (also at port %d)", others[0])
		if len(others) > 1 {
			text = strings.TrimSuffix(text, ")") + " and others)"
		}
	}
	if d.Leads != "" {
		text += ", which leads to " + d.Leads
	}
	if d.Sandbox != "" {
		text += " from sandbox " + d.Sandbox
	}
	return text
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
