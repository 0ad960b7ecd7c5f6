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
	only           narrowing
}

func (l line) conditional() bool { return len(l.methods)+len(l.paths) > 0 || !l.only.none() }

func (l line) String() string {
	if !l.conditional() {
		return quoted(l.pattern)
	}
	text := "{host: " + quoted(l.pattern)
	if len(l.methods) > 0 {
		text += ", methods: [" + strings.Join(l.methods, ", ") + "]"
	}
	if len(l.paths) > 0 {
		text += ", paths: " + quotedList(l.paths)
	}
	return text + l.only.String() + "}"
}

func quoted(text string) string { return strconv.QuoteToASCII(text) }

// ruleFile writes a table as a policy file. Of the lines in it that match a request, those decide that name the host most
// closely, and among them deny beats ask beats allow. Ports, methods and paths do not count. So lines for the same
// hosts with different verdicts have no port in common, unless the stricter one says less.
type ruleFile struct {
	allow, ask, deny []line
	open             bool
	apart            bool // a denied address stays reachable by an allowed name, as in the peer
	stricter         func(format string, args ...any)
}

func (f *ruleFile) write(t *table) {
	closed := make([]action, len(t.spans))
	fromAbove := slices.Clone(t.rows)
	slices.SortStableFunc(fromAbove, func(a, b *row) int { return b.hosts.specific(a.hosts) })
	for _, r := range fromAbove {
		if r.parent != nil {
			f.settle(t.spans, r, r.parent.does)
		} else if uniform(r.does) && r.does[0].plain() && !r.does[0].ask {
			f.open = r.does[0].allow
		}
	}
	for _, r := range t.rows {
		above := closed
		if r.parent != nil {
			above = r.parent.does
		} else if f.open || uniform(r.does) && r.does[0].closed() {
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
	}{{f.allow, &lists.Allow}, {f.ask, &lists.Ask}, {f.deny, &lists.Deny}} {
		for _, l := range list.lines {
			r := policy.Rule{ID: l.String(), Methods: l.methods, Headers: l.only.headers, Query: l.only.query, GraphQL: l.only.graphql}
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
		switch idle.Effect {
		case policy.Deny:
			f.deny = slices.DeleteFunc(f.deny, is)
			continue
		case policy.Ask:
			f.ask = slices.DeleteFunc(f.ask, is)
		default:
			f.allow = slices.DeleteFunc(f.allow, is)
		}
		f.stricter("%s is left out: a deny for the same hosts stands before it here", idle.Rule.ID)
	}
}

// settle denies what a row cannot say: a line with methods or paths opens some requests, and no line for the same hosts
// closes the rest that the row above lets pass.
func (f *ruleFile) settle(spans []span, r *row, above []action) {
	var lost []span
	for i, a := range r.does {
		if !a.plain() && !a.allow && !a.same(above[i]) && !above[i].closed() {
			r.does[i] = action{}
			lost = append(lost, spans[i])
		}
	}
	if len(lost) > 0 {
		f.stricter("%s is denied: it is open for some requests alone, and a line for more hosts opens the rest; name hosts instead of a wildcard", spell(r.hosts, lost))
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
	if uniform(r.does) && slices.Contains(keep, true) {
		f.rule(r.hosts.beforePort()+":*", r.does[0], above[0])
		return
	}
	last := r.does[len(spans)-1]
	open := last.allow && last.plain() && !slices.ContainsFunc(r.does, func(a action) bool { return !a.same(last) && !a.closed() })
	if open && slices.Contains(keep, true) { // denies beside an allow of every port
		f.rule(r.hosts.beforePort()+":*", last, above[len(spans)-1])
		for i := range keep {
			keep[i] = r.does[i].closed()
		}
	}
	i, j := slices.Index(spans, port(80)), slices.Index(spans, port(443))
	if keep[i] && keep[j] && r.does[i].same(r.does[j]) && allowsOnly(r.does[i], above[i]) && allowsOnly(r.does[j], above[j]) {
		f.rule(r.hosts.String(), r.does[i], above[i])
		keep[i], keep[j] = false, false
	}
	for i := 0; i < len(spans); i++ {
		if !keep[i] {
			continue
		}
		end := i
		for end+1 < len(spans) && keep[end+1] && r.does[end+1].same(r.does[i]) && above[end+1].closed() == above[i].closed() {
			end++
		}
		text := strconv.Itoa(int(spans[i].first))
		if spans[end].last != spans[i].first {
			text += "-" + strconv.Itoa(int(spans[end].last))
		}
		f.rule(r.hosts.beforePort()+":"+text, r.does[i], above[i])
		i = end
	}
}

// allowsOnly reports whether an action is written as allows alone, so that a pattern without a port says ports 80 and 443.
func allowsOnly(a, above action) bool {
	denies := func(w way) bool {
		return !w.allow || slices.Contains(w.methods, "GET") && !slices.Contains(w.methods, "HEAD") && !headAllowed(a, w)
	}
	return (a.allow || !a.plain() && !a.ask && above.closed()) && !slices.ContainsFunc(a.ways, denies)
}

// rule writes an action as rules for one pattern. A deny wins there.
func (f *ruleFile) rule(pattern string, a, above action) {
	for i, w := range a.ways {
		get := slices.Contains(w.methods, "GET") && !slices.Contains(w.methods, "HEAD") // it has HEAD in it here
		if !w.allow {
			f.addDeny(line{pattern, w.methods, w.paths, w.only})
			if get {
				f.stricter("%s: HEAD is denied where GET is", pattern)
			}
			continue
		}
		f.addAllow(line{pattern, w.methods, w.paths, w.only})
		if slices.ContainsFunc(a.ways[i+1:], func(later way) bool { return !later.allow && meet(w.methods, later.methods) }) {
			f.stricter("%s: an allow before a deny does not beat it for requests that both are about", pattern)
		}
		if get && !headAllowed(a, w) {
			f.addDeny(line{pattern, []string{"HEAD"}, w.paths, w.only})
			if slices.ContainsFunc(a.ways, func(o way) bool { return o.allow && meet(o.methods, []string{"HEAD"}) }) {
				f.stricter("%s: HEAD is denied where one rule allows GET, even if another allows HEAD", pattern)
			}
		}
	}
	switch {
	case a.allow:
		f.addAllow(line{pattern: pattern})
	case a.ask:
		f.ask = append(f.ask, line{pattern: pattern})
	case a.plain() || !above.closed():
		f.addDeny(line{pattern: pattern})
	}
}

// headAllowed reports whether HEAD is allowed beside the GET of w.
func headAllowed(a action, w way) bool {
	return a.allow || slices.ContainsFunc(a.ways, func(o way) bool {
		return o.allow && (len(o.methods) == 0 || slices.Contains(o.methods, "HEAD")) && (len(o.paths) == 0 || slices.Contains(o.paths, "/**") || slices.Equal(o.paths, w.paths)) && (o.only.none() || o.only.same(w.only))
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
	return l.pattern == other.pattern && slices.Equal(l.methods, other.methods) && slices.Equal(l.paths, other.paths) && l.only.same(other.only)
}

func (f *ruleFile) conditional() bool {
	return slices.ContainsFunc(slices.Concat(f.allow, f.deny), line.conditional)
}

// compares reports whether a line compares header fields or parameters.
func (f *ruleFile) compares() bool {
	looks := func(l line) bool { return len(l.only.headers)+len(l.only.query) > 0 }
	return slices.ContainsFunc(slices.Concat(f.allow, f.deny), looks)
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
	}{{"allow", f.allow}, {"deny", f.deny}, {"ask", f.ask}} {
		if len(list.lines) > 0 {
			fmt.Fprintf(&b, "%s:\n", list.key)
		}
		for _, l := range list.lines {
			fmt.Fprintf(&b, "  - %s\n", l)
		}
	}
	return b.String()
}
