package file

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
)

// Warnings returns what is allowed in a file and yet seldom meant, one sentence
// each with its place, to be said at every start and by "policy check". others are
// the further files of the same policy.
func (f *File) Warnings(others ...*File) (said []string) {
	for _, p := range f.Doubts(others...) {
		said = append(said, p.String())
	}
	return said
}

// Doubts are the warnings with their places apart.
func (f *File) Doubts(others ...*File) []policy.Problem {
	w := warnings{file: f}
	w.observes()
	if f.Default == policy.Allow {
		w.say(f.places["default"], "default is allow: every public destination that no line denies can be reached")
	} else if f.kind == userFile && !f.Mode.Observe && len(f.Ask) == 0 && !slices.ContainsFunc(append(others, f), (*File).Opens) {
		w.say(policy.Position{Line: 1, Column: 1}, "no allow rules: everything is denied; add a host under allow")
	}
	for _, rule := range f.UnsafeAllow {
		if rule.At == (policy.Position{}) { // added to the file by whoever asked for it
			continue
		}
		w.say(rule.At, "%s opens %s, which no sandbox should need", rule.ID, rule.Pattern)
	}
	opening := f.Allow
	for _, other := range others {
		opening = slices.Concat(opening, other.Allow)
	}
	for i := range f.Allow {
		w.allow(&f.Allow[i])
		w.leads(&f.Allow[i], opening)
	}
	for _, rules := range [][]policy.Rule{f.Allow, f.Deny, f.Ask} {
		w.misspelt(rules)
	}
	w.deceptive()
	for _, lists := range f.ruleLists() {
		for _, rules := range [][]policy.Rule{lists.Deny, lists.Ask} {
			for i := range rules {
				w.evaded(&rules[i])
			}
		}
	}
	for i, text := range f.Listen.DNS {
		w.nameListener(fmt.Sprintf("listen.dns[%d]", i), text)
	}
	if f.Listen.OpenToNetwork {
		for _, p := range f.listenersOfAnybody() {
			why, _, _ := strings.Cut(p.Message, ";")
			w.say(f.places["listen.open_to_network"], "%s", why)
		}
	}
	w.nobodyAsks()
	w.upstream()
	return w.said
}

// Opens reports whether anything in the file may allow something without a person.
func (f *File) Opens() bool {
	return len(f.Allow)+len(f.UnsafeAllow)+len(f.Presets)+len(f.AllowFiles) > 0 || f.names(false)
}

// ListsOpen reports whether a list of the file may allow something, or ask a person, without any Rego.
func (f *File) ListsOpen() bool {
	return f.Default == policy.Allow || len(f.Allow)+len(f.UnsafeAllow)+len(f.Presets)+len(f.AllowFiles)+len(f.Ask) > 0 ||
		slices.ContainsFunc(f.Sandboxes, func(s SandboxRules) bool { return len(s.AlsoAllow) > 0 })
}

type warnings struct {
	file *File
	said []policy.Problem
}

func (w *warnings) say(at policy.Position, format string, arguments ...any) {
	w.said = append(w.said, policy.Problem{File: w.file.name, Line: max(at.Line, 1), Column: max(at.Column, 1), Message: fmt.Sprintf(format, arguments...)})
}

// allow warns of a rule that lets data out to more people than it seems.
func (w *warnings) allow(r *policy.Rule) {
	switch why := r.Pattern.Sharing(); {
	case why == "":
	case r.At == (policy.Position{}):
		w.said = append(w.said, policy.Problem{Message: fmt.Sprintf("%s: %s %s", r.ID, r.Pattern, why)})
	default:
		w.say(r.At, "%s: %s %s", r.ID, r.Pattern, why)
	}
	if r.Conditional() && !r.Injects() && w.file.Default == policy.Allow {
		w.say(r.At, "%s changes nothing: the requests that it leaves out are allowed by default; write what is to be refused under deny", r.ID)
	}
}

// deceptive warns of names that a person reads as others.
func (w *warnings) deceptive() {
	f := w.file
	lists := [][]policy.Rule{f.Allow, f.Deny, f.Ask, f.UnsafeAllow, f.Ceiling}
	for _, s := range f.Sandboxes {
		lists = append(lists, s.Allow, s.Deny)
	}
	for _, list := range lists {
		for i := range list {
			if why := list[i].Pattern.Deceptive(); why != "" {
				w.say(list[i].At, "%s: %s %s; write the name that is meant", list[i].ID, list[i].Pattern, why)
			}
		}
	}
}

// leads warns of a rule for many names where a rule opens a private address at one of its
// ports: whoever answers for one of the names can have it lead there.
func (w *warnings) leads(r *policy.Rule, opening []policy.Rule) {
	if r.Pattern.OneHost() || r.Pattern.IsAddress() || policy.InSpecialSpace(r.Pattern) {
		return
	}
	for i := range opening {
		e := &opening[i]
		if e.Pattern.IsAddress() && policy.InSpecialSpace(e.Pattern) && r.Pattern.SharesPort(e.Pattern) {
			w.say(r.At, "%s: a name that %s holds may lead to %s; what %s allows there can then be asked for under that name, and nothing else; list the names that are needed", r.ID, r.Pattern, e.Pattern, e.ID)
			return
		}
	}
}

// nameListener warns of a name server that more than sandboxes can reach.
func (w *warnings) nameListener(what, text string) {
	at, err := netip.ParseAddrPort(text)
	if err != nil {
		return
	}
	const advice = "write an address that only sandboxes can reach, or list them by source under sandboxes"
	switch {
	case at.Addr().IsUnspecified():
		w.say(w.file.places[what], "%s answers on every address of this host, to whoever can reach one of them; %s", what, advice)
	case policy.ClassOf(at.Addr()) == "":
		w.say(w.file.places[what], "%s answers on a public address, to whoever can reach it; %s", what, advice)
	}
}

// nobodyAsks warns of a name server or a listener for captured connections to
// which no sandbox is known: both bring an address and nothing else.
func (w *warnings) nobodyAsks() {
	byAddress := func(s SandboxRules) bool {
		return len(s.Sources) > 0 && s.TokenFile == "" && s.Certificate == "" && s.Listen == "" && len(s.UIDs) == 0
	}
	f := w.file
	if len(f.Sandboxes) == 0 || slices.ContainsFunc(f.Sandboxes, byAddress) {
		return
	}
	if len(f.Listen.DNS) > 0 {
		w.say(f.places["listen.dns[0]"], "listen.dns answers nobody: a question is known by its address alone, and no sandbox has only source")
	}
	if len(f.Listen.Transparent) > 0 {
		w.say(f.places["listen.transparent[0]"], "listen.transparent lets nobody pass: a captured connection is known by its address alone, and no sandbox has only source")
	}
}
