package policycmd

import (
	"fmt"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

// A rulePlace is a rule where it is written.
type rulePlace struct {
	Rule   string `json:"rule,omitempty"`
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Text   string `json:"text"` // the line of the file
}

func placeOf(rule string, p policy.Problem) rulePlace {
	return rulePlace{rule, p.File, p.Line, p.Column, p.Message}
}

func (p *rulePlace) text() string {
	return fmt.Sprintf("%s:%d:%d  %s", p.File, p.Line, p.Column, p.Text)
}

// lineAt finds the line of the file, or of a preset, that a standing is about.
func lineAt(lines []policy.Line, s *policy.Standing) rulePlace {
	for i := range lines {
		if l := &lines[i]; l.ID == s.Rule && l.Place.Line == s.Line && l.Place.Column == s.Column {
			return placeOf(s.Rule, l.Place)
		}
	}
	return rulePlace{Rule: s.Rule, Line: s.Line, Column: s.Column}
}

// regoAt returns where a rule of a part is written: each rule of its sets that gives
// that name and verdict, else those that give names that are not written out.
func regoAt(p *config.RegoPart, d *policy.Decision) (places []rulePlace) {
	var unnamed []rulePlace
	for _, r := range rego.Rules(p.Deciding()) {
		switch {
		case r.Effect.Action() != d.Verdict.Action():
		case r.Name == d.Rule:
			places = append(places, placeOf(r.Name, r.Place))
		case r.Name == "":
			unnamed = append(unnamed, placeOf("", r.Place))
		}
	}
	if len(places) == 0 {
		return unnamed
	}
	return places
}
