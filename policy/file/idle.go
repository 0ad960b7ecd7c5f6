package file

import (
	"fmt"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/policy"
)

// ruleLists are the lists of the file, and those of each sandbox.
func (f *File) ruleLists() []policy.Lists {
	all := []policy.Lists{{Allow: f.Allow, Deny: f.Deny, Ask: f.Ask, UnsafeAllow: f.UnsafeAllow}}
	for _, s := range f.Sandboxes {
		all = append(all, policy.Lists{Allow: s.Allow, Deny: s.Deny})
	}
	return all
}

// checkHidden refuses a rule that never decides because others hide it: one of them would not be kept.
func (r *reader) checkHidden(f *File) {
	if len(r.problems) > 0 { // a rule may lack its pattern
		return
	}
	for _, lists := range f.ruleLists() {
		for _, idle := range lists.Hidden() {
			r.failAt(idle.Rule.At, "%s never decides: %s; remove %s, or what stands in its way", idle.Rule.ID, verdictsOf(&idle), idle.Rule.ID)
		}
	}
}

// verdictsOf names the rules that decide in the place of another.
func verdictsOf(idle *policy.Idle) string {
	const most = 3
	var names []string
	for _, rule := range idle.By[:min(most, len(idle.By))] {
		names = append(names, fmt.Sprintf("%s in line %d", rule.ID, rule.At.Line))
	}
	if more := len(idle.By) - most; more > 0 {
		names = append(names, quantity.Plural(more, "other rule"))
	}
	verb := " decides"
	if len(names) > 1 {
		verb = " decide"
	}
	return strings.Join(names, " and ") + verb + " all that " + idle.Rule.Pattern.String() + " names there"
}

// Remarks are further warnings, for "policy check" alone: rules that only repeat others, and rules that a server which
// ignores the case of paths does not keep.
func (f *File) Remarks() []policy.Problem {
	w := warnings{file: f}
	for _, lists := range f.ruleLists() {
		for _, idle := range lists.Idle() {
			w.say(idle.Rule.At, "%s changes nothing: %s, with the same verdict; remove it", idle.Rule.ID, verdictsOf(&idle))
		}
		for _, rules := range [][]policy.Rule{lists.Deny, lists.Ask} {
			for i := range rules {
				w.folds(&rules[i])
			}
		}
	}
	return w.said
}

// folds warns of a rule that refuses paths by their letters.
func (w *warnings) folds(r *policy.Rule) {
	if r.PathsFold || w.file.foldsPaths(r.Pattern) != "" { // the latter is warned of at every start
		return
	}
	for _, p := range r.Paths {
		if path := p.String(); strings.ToUpper(path) != path || strings.ToLower(path) != path {
			w.say(r.At, "%s: paths are compared byte for byte, so %s passes where %s is refused; if %s ignores case, add paths_fold: true",
				r.ID, otherCase(path), path, r.Pattern.Host())
			return
		}
	}
}

// foldsPaths returns the id of a rule that says of hosts of p that they take upper case in paths for lower case, or "".
func (f *File) foldsPaths(p policy.Pattern) string {
	lists := [][]policy.Rule{f.Allow, f.Deny, f.Ask, f.UnsafeAllow, f.Ceiling}
	for _, s := range f.Sandboxes {
		lists = append(lists, s.Allow, s.Deny, s.AlsoAllow)
	}
	if presets, err := parsePresets(f.Presets); err == nil { // a file with such a preset is not read
		for _, preset := range presets {
			lists = append(lists, preset.Allow)
		}
	}
	for _, list := range lists {
		for i := range list {
			if q := &list[i]; q.PathsFold && q.Pattern.SharesHost(p) {
				return q.ID
			}
		}
	}
	return ""
}

// evaded warns of a rule that refuses paths by their letters on a host of which another rule says that it ignores case.
func (w *warnings) evaded(r *policy.Rule) {
	if r.PathsFold {
		return
	}
	for _, p := range r.Paths {
		path := p.String()
		if strings.ToUpper(path) == path && strings.ToLower(path) == path {
			continue
		}
		if by := w.file.foldsPaths(r.Pattern); by != "" {
			w.say(r.At, "%s: %s takes %s for %s, as %s says, and the rule refuses only the latter; add paths_fold: true", r.ID, r.Pattern.Host(), otherCase(path), path, by)
		}
		return
	}
}

func otherCase(path string) string {
	if upper := strings.ToUpper(path); upper != path {
		return upper
	}
	return strings.ToLower(path)
}

// ListDoubts are warnings about rules that never decide because of lines in the files under allow_file and deny_file, and
// about such lines. They are no errors: others publish these files and change them. A line is compared with unconditional
// rules for the same hosts, wherever these stand.
func (f *File) ListDoubts(lists []policy.ListedHosts) []policy.Problem {
	w := warnings{file: f}
	refusing := map[policy.Pattern][]policy.Pattern{}
	for _, r := range append(slices.Clip(f.Deny), f.Ask...) {
		if !r.Conditional() {
			host := r.Pattern.EveryPort()
			refusing[host] = append(refusing[host], r.Pattern.AnyPort())
		}
	}
	refused := func(p policy.Pattern) bool {
		by := slices.Clip(refusing[p.EveryPort()])
		for i := range lists {
			if lists[i].Effect == policy.Deny {
				for _, q := range lists[i].Hosts.Of(p) {
					by = append(by, q.AnyPort())
				}
			}
		}
		return len(by) > 0 && p.PortsIn(by)
	}
	for i := range f.Allow {
		if r := &f.Allow[i]; refused(r.Pattern) {
			w.say(r.At, "%s never decides: a file under deny_file denies %s; remove %s, or that line", r.ID, r.Pattern, r.ID)
		}
	}
	if len(refusing) == 0 && !slices.ContainsFunc(lists, func(l policy.ListedHosts) bool { return l.Effect == policy.Deny }) {
		return w.said
	}
	for i := range lists {
		l, first, count := &lists[i], policy.Problem{}, 0
		for line, p := range l.Hosts.All() {
			if l.Effect != policy.Allow || !refused(p) {
				continue
			}
			if count++; count == 1 {
				first = policy.Problem{File: l.File, Line: line, Column: 1, Message: p.String()}
			}
		}
		if count > 0 {
			first.Message = fmt.Sprintf("%s has %s that cannot decide; the first is for %s, which another rule denies or asks about", l.ID, quantity.Plural(count, "line"), first.Message)
			w.said = append(w.said, first)
		}
	}
	return w.said
}
