package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
)

// A trustView is what is said about one working tree.
type trustView struct {
	Dir     string       `json:"dir"`
	Sandbox string       `json:"sandbox,omitempty"` // the first whose project it is
	State   projectState `json:"state"`
	Digest  string       `json:"digest"`
	Files   []treeChange `json:"files"`
	Rules   []ruleView   `json:"rules"`

	tree  tree
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

// ruleViewOf asks about what stands for a pattern, as a sandbox. A pattern that
// stands for every host is opened in part at most.
func ruleViewOf(id string, pattern policy.Pattern, p *policy.Policy, sandbox string) ruleView {
	view := ruleView{Rule: id, Pattern: pattern.String()}
	asked, open := 0, 0
	for dst := range pattern.Samples() {
		if asked++; asked > maxSamples {
			break
		}
		d := p.Decide(context.Background(), &policy.Request{Sandbox: policy.Sandbox{Name: sandbox}, Via: policy.ViaConnect, Destination: dst})
		switch {
		case d.Verdict == policy.Allow:
			open++
			continue
		case d.Verdict == policy.Inspect:
			view.Some = true
		}
		if view.Destination == "" {
			view.Destination, view.AllowedIf = dst.String(), d.AllowedIf
			view.By, view.Layer, view.Reason = d.Rule, d.Layer, d.Reason
		}
	}
	switch {
	case asked > 0 && open == asked:
		view.Opens = "yes"
	case open > 0, view.Some, asked == 0:
		view.Opens = "partly"
	default:
		view.Opens = "no"
	}
	return view
}

func changesOf(was *pin, now tree) (all []treeChange) {
	text := func(t []byte) *string {
		if t == nil {
			return nil
		}
		s := string(t)
		return &s
	}
	var before tree
	if was != nil {
		before = was.Files
	}
	for _, f := range now {
		c := treeChange{Name: f.Name, Text: text(append([]byte{}, f.Text...)), Was: text(before.text(f.Name))}
		all = append(all, c)
	}
	for _, f := range before {
		if !slices.ContainsFunc(now, func(n treeText) bool { return n.Name == f.Name }) {
			all = append(all, treeChange{Name: f.Name, Was: text(append([]byte{}, f.Text...))})
		}
	}
	return all
}

func (v *trustView) print(stdout, stderr io.Writer, asJSON bool) error {
	for _, n := range v.notes {
		fmt.Fprintf(stderr, "egressd: warning: %s\n", printable(n))
	}
	if asJSON {
		return printJSON(stdout, v)
	}
	colours := paletteFor(stdout)
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s\n", printable(filepath.Join(v.Dir, treeFolder)), v.State)
	field(&b, "sandbox", v.Sandbox)
	field(&b, "digest", v.Digest)
	for _, f := range v.Files {
		b.WriteString(f.diff())
	}
	for _, r := range v.Rules {
		fmt.Fprintf(&b, "%s %s %s%s\n", colours.mark(map[string]string{"yes": "allow", "partly": "ask", "no": "deny"}[r.Opens]), printable(r.Rule), r.Pattern, r.whyText())
	}
	_, err := io.WriteString(stdout, b.String())
	return err
}

func (r *ruleView) whyText() string {
	by := ruleText(r.By, string(r.Layer))
	switch {
	case r.Opens == "yes":
		return ": opened"
	case r.Opens == "no":
		return fmt.Sprintf(": stays shut by %s: %s", by, printable(r.Reason))
	case r.Some:
		text := fmt.Sprintf(": opened for some requests, by %s", by)
		if len(r.AllowedIf) > 0 {
			text += ": if " + strings.Join(r.AllowedIf, ", or ")
		}
		return printable(text)
	case r.Destination == "":
		return ": opens what the ceiling has room for"
	}
	return fmt.Sprintf(": opened in part; %s stays shut by %s", r.Destination, by)
}

// maxDiffLines is how long a file may be that is compared line by line.
const maxDiffLines = 3000

// diff shows the change of a file, and the whole of one that is new or long.
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
		was = ""
	}
	return unifiedDiff("trusted/"+c.Name, c.Name, was, now)
}
