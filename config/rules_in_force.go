package config

import (
	"strings"

	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/rego"
)

// A RuleInForce is a rule that can decide.
type RuleInForce struct {
	Rule    string       `json:"rule"` // empty where it depends on the request
	Layer   policy.Layer `json:"layer"`
	Effect  string       `json:"effect"`
	Sandbox string       `json:"sandbox,omitempty"`
	What    string       `json:"what"` // its pattern and condition, or the head of the rule
	File    string       `json:"file,omitempty"`
	Line    int          `json:"line,omitempty"`

	Positional bool `json:"-"` // its id is its place in a list
}

// RulesInForce returns all rules that can decide, in the order in which they stand: the baseline first, and the
// default last.
func (c *Config) RulesInForce() ([]RuleInForce, error) {
	all := []RuleInForce{{Rule: "baseline", Layer: policy.Builtin, Effect: "deny", What: "special-purpose addresses and names, this host, egressd itself"}}
	lines, err := c.Lines()
	if err != nil {
		return nil, err
	}
	for i := range lines {
		all = addLine(all, &lines[i])
	}
	for i := range c.HostLists {
		l := &c.HostLists[i]
		all = append(all, RuleInForce{
			Rule: l.ID, Layer: policy.User, Effect: l.Effect.String(), What: quantity.Plural(l.Hosts.Len(), "pattern"), File: l.File, Line: 1, Positional: true,
		})
	}
	for i := range c.Parts {
		for _, r := range rego.Rules(c.Parts[i].Deciding()) {
			one := RuleInForce{
				Rule: r.Name, Layer: c.Parts[i].Options.Layer, Effect: r.Effect.String(), Sandbox: c.Parts[i].Sandbox,
				What: r.Place.Message, File: r.Place.File, Line: r.Place.Line,
			}
			if name, own := strings.CutPrefix(r.Package, "egress."); own && one.Sandbox == "" {
				one.Layer, one.Sandbox = policy.PerSandbox, name
			}
			all = append(all, one)
		}
	}
	for _, s := range c.File.Sandboxes {
		if s.Narrowed {
			all = append(all, RuleInForce{Rule: "default", Layer: policy.PerSandbox, Effect: "deny", Sandbox: s.Name, What: "what its allow does not list"})
		}
	}
	if c.Ceiled() {
		all = append(all, RuleInForce{Rule: "ceiling", Layer: policy.Organisation, Effect: "deny", What: "what layers below the organisation open outside of its ceiling"})
	}
	for _, o := range c.File.Observing() {
		all = append(all, RuleInForce{Rule: policy.LearnRule, Layer: policy.User, Effect: "allow", Sandbox: o.Sandbox, What: "what is public and no rule mentions, for " + o.Text()})
	}
	left := RuleInForce{Rule: "default", Layer: policy.Builtin, Effect: "deny", What: "everything that no rule mentions"}
	if c.File.Default == policy.Allow {
		left.Layer, left.Effect = policy.User, "allow"
	}
	return append(all, left), nil
}

// addLine appends a line of the file. Lines of one preset share an id, so addLine adds them to one entry.
func addLine(all []RuleInForce, l *file.Line) []RuleInForce {
	what := l.Pattern.String()
	if l.Words != "" {
		what += ", if " + l.Words
	}
	last := &all[len(all)-1]
	if l.Preset != "" && last.Rule == l.ID {
		last.What += "; " + what
		return all
	}
	return append(all, RuleInForce{
		Rule: l.ID, Layer: l.Layer, Effect: l.Effect.String(), Sandbox: l.Sandbox, What: what, File: l.Place.File, Line: l.Place.Line,
		Positional: strings.Contains(l.ID, "["), // which no id that was given has
	})
}
