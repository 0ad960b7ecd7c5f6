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

// ruleFile writes a table as a policy file, in which the most specific rule decides.
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
}

func uniform(does []action) bool {
	return !slices.ContainsFunc(does, func(a action) bool { return !a.same(does[0]) })
}

// row writes what differs from the row above, and what the peer denies in so many words: such a
// denial holds against allows of other layers, and a denied address against allowed names.
func (f *ruleFile) row(spans []span, r *row, above []action) {
	insist := r.hosts.kind != everyHost && (!f.apart || r.hosts.kind != somePrefix)
	keep := make([]bool, len(spans))
	for i, a := range r.does {
		keep[i] = !a.same(above[i]) || insist && r.denied[i] && a.plain()
	}
	last := len(spans) - 1
	written := make([]bool, len(spans))
	if keep[last] {
		f.rule(r.hosts.beforePort()+":*", r.does[last])
		for i, a := range r.does {
			written[i], keep[i] = a.same(r.does[last]), true
		}
	}
	web := func(s span) bool { return s == port(80) || s == port(443) }
	if i, j := slices.IndexFunc(spans, web), slices.Index(spans, port(443)); keep[i] && keep[j] && !written[i] && !written[j] && r.does[i].same(r.does[j]) {
		f.rule(r.hosts.String(), r.does[i])
		written[i], written[j] = true, true
	}
	for i := 0; i <= last; i++ {
		if !keep[i] || written[i] {
			continue
		}
		end := i
		for end < last && keep[end+1] && !written[end+1] && r.does[end+1].same(r.does[i]) {
			end++
		}
		text := strconv.Itoa(int(spans[i].first))
		if spans[end].last != spans[i].first {
			text += "-" + strconv.Itoa(int(spans[end].last))
		}
		f.rule(r.hosts.beforePort()+":"+text, r.does[i])
		i = end
	}
}

// rule writes an action as rules for one pattern. There a rule with a condition comes before one
// without, and deny wins between two of them.
func (f *ruleFile) rule(pattern string, a action) {
	for i, w := range a.ways {
		l := line{pattern, w.methods, w.paths}
		if !w.allow {
			f.addDeny(l)
			if slices.Contains(w.methods, "GET") && !slices.Contains(w.methods, "HEAD") {
				f.stricter("%s: HEAD is denied where GET is", pattern)
			}
			continue
		}
		f.addAllow(l)
		if slices.ContainsFunc(a.ways[i+1:], func(later way) bool { return !later.allow && meet(w.methods, later.methods) }) {
			f.stricter("%s: an allow before a deny does not beat it for requests that both are about", pattern)
		}
		if slices.Contains(w.methods, "GET") && !slices.Contains(w.methods, "HEAD") && !headAllowed(a, w) {
			f.addDeny(line{pattern, []string{"HEAD"}, w.paths})
			if slices.ContainsFunc(a.ways, func(o way) bool { return o.allow && meet(o.methods, []string{"HEAD"}) }) {
				f.stricter("%s: HEAD is denied where one rule allows GET, even if another allows HEAD", pattern)
			}
		}
	}
	if a.allow {
		f.addAllow(line{pattern: pattern})
	} else {
		f.addDeny(line{pattern: pattern})
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
