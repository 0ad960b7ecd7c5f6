package peers

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/policy"
)

// A line is one rule of a policy file of egressd.
type line struct {
	pattern        string
	methods, paths []string
}

func (l line) String() string {
	if len(l.methods)+len(l.paths) == 0 {
		return quoted(l.pattern)
	}
	text := "{host: " + quoted(l.pattern)
	if len(l.methods) > 0 {
		text += ", methods: [" + strings.Join(l.methods, ", ") + "]"
	}
	if len(l.paths) > 0 {
		all := make([]string, len(l.paths))
		for i, p := range l.paths {
			all[i] = quoted(p)
		}
		text += ", paths: [" + strings.Join(all, ", ") + "]"
	}
	return text + "}"
}

func quoted(text string) string { return strconv.QuoteToASCII(text) }

// ruleFile writes a table as a policy file, in which deny beats allow unless the allow names the host more closely.
type ruleFile struct {
	allow, deny []line
	open        bool
	apart       bool // a denied address stays reachable by an allowed name, as in the peer
	stricter    func(format string, args ...any)
}

func (f *ruleFile) write(t *table) {
	closed := make([]action, len(t.spans))
	for _, r := range t.rows {
		above := closed
		if r.parent != nil {
			above = r.parent.does
		} else if uniform(r.does) && r.does[0].plain() {
			f.open = r.does[0].allow
			continue
		}
		f.row(t.spans, r, above)
	}
	f.prune()
}

// prune leaves out lines that never decide, which a policy file may not have.
func (f *ruleFile) prune() {
	var lists policy.Lists
	for _, list := range []struct {
		lines []line
		into  *[]policy.Rule
	}{{f.allow, &lists.Allow}, {f.deny, &lists.Deny}} {
		for _, l := range list.lines {
			r := policy.Rule{ID: l.String(), Methods: l.methods}
			r.Pattern, _ = policy.ParsePattern(l.pattern) // of a host and ports that were read
			for _, text := range l.paths {
				path, _ := policy.ParsePathPattern(text)
				r.Paths = append(r.Paths, path)
			}
			*list.into = append(*list.into, r)
		}
	}
	for _, idle := range lists.Hidden() {
		is := func(l line) bool { return l.String() == idle.Rule.ID }
		if idle.Effect == policy.Deny {
			f.deny = slices.DeleteFunc(f.deny, is)
			continue
		}
		f.allow = slices.DeleteFunc(f.allow, is)
		f.stricter("%s is left out: a deny for the same hosts stands before it here", idle.Rule.ID)
	}
}

func uniform(does []action) bool {
	return !slices.ContainsFunc(does, func(a action) bool { return !a.same(does[0]) })
}

// row writes what differs from the row above, and what the peer denies in so many words: such a
// denial holds against allows of other layers, and a denied address against allowed names.
func (f *ruleFile) row(spans []span, r *row, above []action) {
	insist := r.hosts.kind != everyHost && (!f.apart || r.hosts.kind != somePrefix)
	does, keep := slices.Clone(r.does), make([]bool, len(spans))
	for i, a := range does {
		keep[i] = !a.same(above[i]) || insist && r.denied[i] && a.plain()
		if keep[i] && !a.plain() && !a.allow && above[i].allows() {
			f.stricter("%s: its rules for methods and paths are left out where a wider rule would allow the other requests", r.hosts)
			does[i] = action{}
		}
	}
	last := len(spans) - 1
	if keep[last] && wholly(does) {
		f.rule([]string{r.hosts.beforePort() + ":*"}, nil, does[last])
		for i, a := range does {
			keep[i] = !a.same(does[last])
		}
	}
	web := func(s span) bool { return s == port(80) || s == port(443) }
	i, j := slices.IndexFunc(spans, web), slices.Index(spans, port(443))
	if keep[i] && keep[j] && does[i].same(does[j]) && does[i].allows() {
		f.rule([]string{r.hosts.String()}, []string{r.hosts.beforePort() + ":80", r.hosts.beforePort() + ":443"}, does[i])
		keep[i], keep[j] = false, false
	}
	for i := 0; i <= last; i++ {
		if !keep[i] {
			continue
		}
		end := i
		for end < last && keep[end+1] && does[end+1].same(does[i]) {
			end++
		}
		text := strconv.Itoa(int(spans[i].first))
		if spans[end].last != spans[i].first {
			text += "-" + strconv.Itoa(int(spans[end].last))
		}
		f.rule([]string{r.hosts.beforePort() + ":" + text}, nil, does[i])
		i = end
	}
}

// wholly reports whether a line for every port can say what is done in the last span, beside lines that only deny.
func wholly(does []action) bool {
	most := does[len(does)-1]
	return most.plain() && !slices.ContainsFunc(does, func(a action) bool {
		return !a.same(most) && (!most.allow || a.allows() && !a.allow)
	})
}

// rule writes an action as rules for patterns of the same hosts; those that deny have their own, if their ports need
// that. Among them deny wins. No wider rule allows the requests that rules with conditions leave out.
func (f *ruleFile) rule(patterns, denying []string, a action) {
	if denying == nil {
		denying = patterns
	}
	deny := func(methods, paths []string) {
		for _, pattern := range denying {
			f.addDeny(line{pattern, methods, paths})
		}
	}
	for i, w := range a.ways {
		if !w.allow {
			deny(w.methods, w.paths)
			if slices.Contains(w.methods, "GET") && !slices.Contains(w.methods, "HEAD") {
				f.stricter("%s: HEAD is denied where GET is", patterns[0])
			}
			continue
		}
		for _, pattern := range patterns {
			f.addAllow(line{pattern, w.methods, w.paths})
		}
		if slices.ContainsFunc(a.ways[i+1:], func(later way) bool { return !later.allow && meet(w.methods, later.methods) }) {
			f.stricter("%s: an allow before a deny does not beat it for requests that both are about", patterns[0])
		}
		if slices.Contains(w.methods, "GET") && !slices.Contains(w.methods, "HEAD") && !headAllowed(a, w) {
			deny([]string{"HEAD"}, w.paths)
			if slices.ContainsFunc(a.ways, func(o way) bool { return o.allow && meet(o.methods, []string{"HEAD"}) }) {
				f.stricter("%s: HEAD is denied where one rule allows GET, even if another allows HEAD", patterns[0])
			}
		}
	}
	switch {
	case a.allow:
		for _, pattern := range patterns {
			f.addAllow(line{pattern: pattern})
		}
	case a.plain():
		deny(nil, nil)
	}
}

// headAllowed reports whether HEAD is allowed beside the GET of w.
func headAllowed(a action, w way) bool {
	return a.allow || slices.ContainsFunc(a.ways, func(o way) bool {
		return o.allow && (len(o.methods) == 0 || slices.Contains(o.methods, "HEAD")) && (len(o.paths) == 0 || slices.Contains(o.paths, "/**") || slices.Equal(o.paths, w.paths))
	})
}

// meet reports whether both lists have a method in common. An empty list has all methods.
func meet(a, b []string) bool {
	return len(a) == 0 || len(b) == 0 || slices.ContainsFunc(a, func(m string) bool { return slices.Contains(b, m) })
}

func (f *ruleFile) addDeny(l line) {
	if !slices.ContainsFunc(f.deny, l.same) {
		f.deny = append(f.deny, l)
	}
}

// addAllow leaves out what only unsafe_allow opens.
func (f *ruleFile) addAllow(l line) {
	if p, err := policy.ParsePattern(l.pattern); err == nil && p.NeedsUnsafe() != "" {
		f.stricter("%s is left out: only unsafe_allow opens %s space", l.pattern, p.NeedsUnsafe())
		return
	}
	if !slices.ContainsFunc(f.allow, l.same) {
		f.allow = append(f.allow, l)
	}
}

func (l line) same(other line) bool {
	return l.pattern == other.pattern && slices.Equal(l.methods, other.methods) && slices.Equal(l.paths, other.paths)
}

func (f *ruleFile) conditional() bool {
	looks := func(l line) bool { return len(l.methods)+len(l.paths) > 0 }
	return slices.ContainsFunc(f.allow, looks) || slices.ContainsFunc(f.deny, looks)
}

// text is the file, with a comment that names the peer.
func (f *ruleFile) text(from string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# From the settings of %s, by egressd policy import.\nversion: 1\n", from)
	if f.open {
		b.WriteString("default: allow\n")
	}
	for _, list := range []struct {
		key   string
		lines []line
	}{{"allow", f.allow}, {"deny", f.deny}} {
		if len(list.lines) > 0 {
			fmt.Fprintf(&b, "%s:\n", list.key)
		}
		for _, l := range list.lines {
			fmt.Fprintf(&b, "  - %s\n", l)
		}
	}
	return b.String()
}
