package explain

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/rego"
)

// An Explanation is an answer, and how the parts of the policy come to it.
type Explanation struct {
	Answer
	AddressClass string    `json:"address_class,omitempty"`
	Written      []Written `json:"written,omitempty"` // the rule that decides
	Opinions     []Opinion `json:"opinions"`
	Fix          string    `json:"fix,omitempty"`
	Change       string    `json:"change,omitempty"` // how to change the answer, if no command does
}

// An Opinion is the decision of one part of the policy alone.
type Opinion struct {
	Part      string       `json:"part"`
	Layer     policy.Layer `json:"layer,omitempty"`
	Verdict   string       `json:"verdict"`
	Class     policy.Class `json:"class,omitempty"`
	Rule      string       `json:"rule,omitempty"`
	Reason    string       `json:"reason,omitempty"`
	AllowedIf []string     `json:"allowed_if,omitempty"`
	Error     string       `json:"error,omitempty"`
	Written   []Written    `json:"written,omitempty"`
	Lines     []Line       `json:"lines,omitempty"`
}

// A Line is a rule about the destination, and why it decides or does not.
type Line struct {
	Written
	Effect  string `json:"effect"`
	Pattern string `json:"pattern"`
	Address string `json:"address,omitempty"`
	Stands  string `json:"stands"`
}

// A Question is a request to explain.
type Question struct {
	Sandbox         policy.Sandbox
	Method, Request string
	Addresses       []netip.Addr // that the name of the request resolves to, if known

	// Header has names in lower case, and Body is not compressed. Both belong to a URL, and may be nil. A body implies POST.
	Header map[string][]string
	Body   []byte

	Flags string // for commands in hints, such as " --config FILE"
}

// Explain answers q by p, which was compiled from cfg.
func Explain(cfg *config.Config, p *policy.Policy, q Question) (*Explanation, error) {
	j, err := judge(p, &q)
	if err != nil {
		return nil, err
	}
	lines, err := cfg.Lines()
	if err != nil {
		return nil, err
	}
	e := &Explanation{Answer: *j.answer(p, q.Method != ""), AddressClass: j.decision.AddressClass}
	for _, opinion := range p.Opinions(context.Background(), &j.judged) {
		e.Opinions = append(e.Opinions, opinionOf(cfg, &opinion, lines, &j.decision))
	}
	e.Written = e.writtenBy(&j.decision)
	e.Fix, e.Change = e.wayOut(q.Flags, &j.judged, &j.decision)
	if !e.AddressesJudged {
		e.Notes = append(e.Notes, "address rules were not checked, since names are not resolved here; add --address ADDR to check them")
	}
	return e, nil
}

// opinionOf describes the opinion o, with the rules that it comes from.
func opinionOf(c *config.Config, o *policy.Opinion, lines []file.Line, decision *policy.Decision) Opinion {
	d := &o.Decision
	v := Opinion{Part: config.PartName(o), Layer: o.Layer, Verdict: d.Verdict.String(), Class: d.Class, Rule: d.Rule, Reason: d.Reason, AllowedIf: d.AllowedIf}
	if o.Err != nil {
		v.Error = o.Err.Error()
	}
	if part := c.PartBy(o.By); part != nil {
		if v.Part = part.At; o.Part == policy.PartCeiling {
			v.Part += " ceiling"
		}
		if d.Verdict != policy.Abstain && o.Err == nil {
			v.Written = regoAt(part, d)
		}
	}
	lines = slices.DeleteFunc(slices.Clone(lines), func(l file.Line) bool { return l.Layer != o.Layer })
	for i := range o.Rules {
		at := lineAt(lines, &o.Rules[i])
		if l := c.ListedAt(at.Rule); l != nil {
			at = writtenAt(at.Rule, policy.Problem{File: l.File, Line: at.Line, Column: at.Column, Message: o.Rules[i].Pattern.String()})
		}
		if d.Rule == at.Rule && v.Written == nil {
			v.Written = []Written{at}
		}
		v.Lines = append(v.Lines, standingOf(o, i, at, decision))
	}
	return v
}

// standingOf compares rule i of the opinion o with the other rules, and with the decision.
func standingOf(o *policy.Opinion, i int, at Written, decision *policy.Decision) Line {
	s, stands, first := &o.Rules[i], "names the host less closely", firstOf(o)
	switch {
	case i == first && decision.Rule == s.Rule:
		stands = "decides"
	case i == first:
		stands = "would, were it alone"
	case s.Depends:
		stands = "depends on the request"
	case !s.Holds:
		stands = "is not about this request"
	case s.Ties && s.Effect != o.Rules[i-1].Effect:
		stands = "names the host as closely, and the stricter counts"
	case s.Ties:
		stands = "says the same"
	case o.Decision.Verdict == policy.Abstain:
		stands = "has no say"
	case i < first:
		stands = "holds, and a refusal of the address counts"
	}
	v := Line{Written: at, Effect: s.Effect.String(), Pattern: s.Pattern.String(), Stands: stands}
	if s.Address.IsValid() {
		v.Address = s.Address.String()
	}
	return v
}

// firstOf returns the index of the first rule with the id of the opinion's rule, or -1. It prefers rules that
// hold, because the rules of a preset share one id.
func firstOf(o *policy.Opinion) int {
	spoke := func(s policy.Standing) bool { return s.Rule == o.Decision.Rule }
	if i := slices.IndexFunc(o.Rules, func(s policy.Standing) bool { return spoke(s) && (s.Holds || s.Depends) }); i >= 0 {
		return i
	}
	return slices.IndexFunc(o.Rules, spoke)
}

func (e *Explanation) writtenBy(d *policy.Decision) []Written {
	for i := range e.Opinions {
		o := &e.Opinions[i]
		if o.Rule == d.Rule && o.Written != nil && (o.Verdict == d.Verdict.String() || d.Verdict != policy.Deny) {
			return o.Written
		}
	}
	return nil
}

// wayOut returns a command that would allow the request, if [offered] names a host, else words.
func (e *Explanation) wayOut(flags string, asked *policy.Request, d *policy.Decision) (fix, change string) {
	if d.Verdict.Action() == "allow" {
		return "", ""
	}
	if words := offered(asked, d); words != "" {
		if d.Layer == policy.PerSandbox {
			flags = " --sandbox " + shell.Word(asked.Sandbox.Name) + flags
		}
		return shell.Program() + " allow " + words + " --save" + flags, ""
	}
	switch {
	case d.Class == policy.AddressDenied:
		return "", addressChange(asked, d)
	case d.Layer == policy.PerSandbox && d.Class == policy.DefaultDeny:
		return "", "a rule in rego of the sandbox, or of its list: what it may reach is what stands there"
	case d.Class == policy.PolicyError:
		return "", "a policy that can be evaluated: the opinions say what failed"
	case d.Rule == "ceiling":
		return "", "a wider ceiling, or a rule of the organisation that allows it"
	case len(d.AllowedIf) > 0:
		return "", "another request: " + strings.Join(d.AllowedIf, ", or ")
	case len(e.Written) == 0:
		return "", ""
	case e.fromFile(d):
		return "", "rule " + d.Rule + " without it, or a line under allow that names the host more closely"
	}
	return "", "rule " + d.Rule + " without it: a refusal counts, whatever else allows"
}

func (e *Explanation) fromFile(d *policy.Decision) bool {
	for i := range e.Opinions {
		for _, l := range e.Opinions[i].Lines {
			if l.Rule == d.Rule && e.Opinions[i].Part == string(policy.PartFile) {
				return true
			}
		}
	}
	return false
}

// offered returns the words of a command that allows exactly what was asked, or "". [logs.Opening] judges it as if it were in the log.
func offered(asked *policy.Request, d *policy.Decision) string {
	if d.Layer == policy.PerSandbox && d.Rule != "default" {
		return ""
	}
	dst := &asked.Destination
	r := &record.Record{
		Dst:      &record.Destination{Host: dst.Host, Port: dst.Port, Class: d.AddressClass},
		Decision: &record.Decision{Action: d.Verdict.Action(), Class: string(d.Class)},
	}
	if asked.HTTP != nil {
		r.HTTP = &record.HTTP{Method: asked.HTTP.Method, Path: asked.HTTP.Path}
	}
	o, exact := logs.Opening(r)
	if !exact || o.Check() != nil || policy.LooksLikeData(dst.Host) {
		return ""
	}
	words := shell.Pattern(o.Pattern.String())
	if o.Conditional() {
		words += " --method " + o.Method + " --path " + shell.Word(o.Path)
	}
	return words
}

func addressChange(asked *policy.Request, d *policy.Decision) string {
	p, err := policy.ParsePattern(asked.Destination.String())
	if err == nil && policy.CheckGrant(p) != nil {
		return "nothing that a sandbox should need: " + d.AddressClass + " is open to none"
	}
	return "another destination: what is " + d.AddressClass + " is open only where a line under allow names just that"
}

// Written is a rule with the place in which it is written.
type Written struct {
	Rule   string `json:"rule,omitempty"`
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Text   string `json:"text"` // of that line
}

func writtenAt(rule string, p policy.Problem) Written {
	return Written{rule, p.File, p.Line, p.Column, p.Message}
}

// String returns FILE:LINE:COLUMN and the text of the line.
func (p *Written) String() string {
	return fmt.Sprintf("%s:%d:%d  %s", p.File, p.Line, p.Column, p.Text)
}

// lineAt returns the line of the file, or of a preset, that s is about.
func lineAt(lines []file.Line, s *policy.Standing) Written {
	for i := range lines {
		if l := &lines[i]; l.ID == s.Rule && l.Place.Line == s.Line && l.Place.Column == s.Column {
			return writtenAt(s.Rule, l.Place)
		}
	}
	return Written{Rule: s.Rule, Line: s.Line, Column: s.Column}
}

// regoAt returns the Rego rules that give the name and the verdict of d. Without one, it returns the rules of
// that verdict whose names are computed.
func regoAt(p *config.RegoPart, d *policy.Decision) (places []Written) {
	var unnamed []Written
	for _, r := range rego.Rules(p.Deciding()) {
		switch {
		case r.Effect.Action() != d.Verdict.Action():
		case r.Name == d.Rule:
			places = append(places, writtenAt(r.Name, r.Place))
		case r.Name == "":
			unnamed = append(unnamed, writtenAt("", r.Place))
		}
	}
	if len(places) == 0 {
		return unnamed
	}
	return places
}
