package policy

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/edit"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/policy"
)

// A trustView is what is said about one working tree.
type trustView struct {
	Dir     string              `json:"dir"`
	Sandbox string              `json:"sandbox,omitempty"`   // the first of them
	Whose   []string            `json:"sandboxes,omitempty"` // whose project it is
	State   config.ProjectState `json:"state"`
	Digest  string              `json:"digest"`
	Files   []treeChange        `json:"files"`
	Rules   []ruleView          `json:"rules"`

	tree  config.Tree
	notes []string
}

// A treeChange is a file, and what was trusted of it.
type treeChange struct {
	Name string  `json:"name"`
	Text *string `json:"text"`              // null: it is gone
	Was  *string `json:"trusted,omitempty"` // null: it was not there
}

// A ruleView is what becomes of one rule that allows something.
type ruleView struct {
	Rule        string       `json:"rule"`
	Pattern     string       `json:"pattern"`
	Opens       string       `json:"opens"` // yes, partly, no
	Destination string       `json:"destination,omitempty"`
	By          string       `json:"decided_by,omitempty"`
	Layer       policy.Layer `json:"layer,omitempty"`
	Reason      string       `json:"reason,omitempty"`
	Some        bool         `json:"some_requests,omitempty"`
	AllowedIf   []string     `json:"allowed_if,omitempty"`
}

// maxSamples bounds how many destinations stand for one rule.
const maxSamples = 64

// loosestView returns the view of a rule for the sandbox for which the rule opens most.
func loosestView(id string, pattern policy.Pattern, p *policy.Policy, sandboxes []string) ruleView {
	views := make([]ruleView, len(sandboxes))
	for i, name := range sandboxes {
		views[i] = ruleViewOf(id, pattern, p, name)
	}
	return slices.MaxFunc(views, func(a, b ruleView) int { return cmp.Compare(a.rank(), b.rank()) })
}

func (r *ruleView) rank() int { return slices.Index([]string{"no", "partly", "yes"}, r.Opens) }

// ruleViewOf decides up to maxSamples destinations of a pattern for a sandbox. If a pattern has more destinations,
// or several hosts, the view never says "no"; for "*" it never says "yes".
func ruleViewOf(id string, pattern policy.Pattern, p *policy.Policy, sandbox string) ruleView {
	view := ruleView{Rule: id, Pattern: pattern.String()}
	asked, open := 0, 0
	for dst := range pattern.Samples() {
		if asked++; asked > maxSamples {
			break
		}
		d := p.Decide(context.Background(), &policy.Request{
			Sandbox: policy.Sandbox{Name: sandbox}, Via: policy.ViaConnect, Destination: dst, Usage: new(policy.Usage), Time: time.Now(),
		})
		if d.Verdict == policy.Allow {
			open++
			continue
		}
		view.Some = view.Some || onRequests(d)
		if view.Destination == "" {
			view.Destination, view.AllowedIf = dst.String(), d.AllowedIf
			view.By, view.Layer, view.Reason = d.Rule, d.Layer, d.Reason
		}
	}
	switch {
	case asked > 0 && open == asked:
		view.Opens = "yes"
	case open > 0, view.Some, asked == 0, asked > maxSamples, !pattern.OneHost():
		view.Opens = "partly"
	default:
		view.Opens = "no"
	}
	return view
}

// onRequests reports whether some requests may pass: where a tunnel shows none, those
// outside of tunnels.
func onRequests(d policy.Decision) bool {
	return d.Verdict == policy.Inspect || d.Class == policy.MethodDenied || d.Class == policy.PathDenied || d.Class == policy.HeaderDenied || d.Class == policy.QueryDenied || d.Class == policy.GitDenied || d.Class == policy.BodyDenied || d.Class == policy.MCPDenied || d.Class == policy.ModelDenied || d.Class == policy.GraphQLDenied
}

func changesOf(was *config.Pin, now config.Tree) (all []treeChange) {
	text := func(t []byte) *string {
		if t == nil {
			return nil
		}
		s := string(t)
		return &s
	}
	var before config.Tree
	if was != nil {
		before = was.Files
	}
	for _, f := range now {
		c := treeChange{Name: f.Name, Text: text(append([]byte{}, f.Text...)), Was: text(before.Text(f.Name))}
		all = append(all, c)
	}
	for _, f := range before {
		if !slices.ContainsFunc(now, func(n config.TreeText) bool { return n.Name == f.Name }) {
			all = append(all, treeChange{Name: f.Name, Was: text(append([]byte{}, f.Text...))})
		}
	}
	return all
}

func (v *trustView) print(stdout, stderr io.Writer, asJSON bool) error {
	for _, n := range v.notes {
		fmt.Fprintf(stderr, "egressd: warning: %s\n", printable.Text(n))
	}
	if asJSON {
		return cli.PrintJSON(stdout, v)
	}
	colours := cli.PaletteFor(stdout)
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s\n", printable.Text(filepath.Join(v.Dir, config.TreeFolder)), v.State)
	cli.Field(&b, "sandbox", strings.Join(v.Whose, ", "))
	cli.Field(&b, "digest", v.Digest)
	for _, f := range v.Files {
		b.WriteString(f.diff())
	}
	for _, r := range v.Rules {
		fmt.Fprintf(&b, "%s %s %s%s\n", colours.Mark(map[string]string{"yes": "allow", "partly": "ask", "no": "deny"}[r.Opens]), printable.Text(r.Rule), r.Pattern, r.whyText())
	}
	_, err := io.WriteString(stdout, b.String())
	return err
}

func (r *ruleView) whyText() string {
	by := printable.Rule(r.By, string(r.Layer))
	switch {
	case r.Opens == "yes":
		return ": opened"
	case r.Opens == "no":
		return fmt.Sprintf(": stays shut by %s: %s", by, printable.Text(r.Reason))
	case r.Some:
		text := fmt.Sprintf(": opened for some requests, by %s", by)
		if len(r.AllowedIf) > 0 {
			text += ": if " + strings.Join(r.AllowedIf, ", or ")
		}
		return printable.Text(text)
	case r.Destination == "":
		return ": opens what the ceiling has room for"
	}
	return printable.Text(fmt.Sprintf(": opened in part at most; %s stays shut by %s", r.Destination, by))
}

// maxDiffLines is how long a file may be that is compared line by line.
const maxDiffLines = 3000

// diff shows the change of a file. Of one that is long it shows all that was there and
// all that is: what was taken out may be what denied.
func (c *treeChange) diff() string {
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	was, now := text(c.Was), text(c.Text)
	switch {
	case c.Was != nil && c.Text != nil && was == now:
		return ""
	case c.Was != nil && strings.Count(was, "\n")+strings.Count(now, "\n") > maxDiffLines:
		return edit.UnifiedDiff("trusted/"+c.Name, c.Name, was, "") + edit.UnifiedDiff("trusted/"+c.Name, c.Name, "", now)
	}
	return edit.UnifiedDiff("trusted/"+c.Name, c.Name, was, now)
}
