package peers

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/policy"
)

// Rules are those of one policy file, as package policy/file reads them.
type Rules struct {
	Allow, Deny, Ask []policy.Rule
	Presets          []policy.Rule // allowed where the other lists are silent
	Open             bool          // default: allow
	Beside           []string      // what narrows the policy, and no list says: "Rego"
}

// Targets are the peers whose policies can be written, by name.
func Targets() []Kind { return targets }

var targets = []Kind{
	{Name: "claude", File: "sandbox.network of Claude Code's settings.json", write: writeClaude},
	{Name: "daytona", File: "networkAllowList and domainAllowList, as JSON", write: writeDaytona},
	{Name: "docker", File: "a script of sbx policy commands", write: writeDocker, labels: true},
	{Name: "e2b", File: "the object of E2B's network option", write: writeE2B},
	{Name: "sprites", File: "the network policy of a Sprite", write: writeSprites},
	{Name: "srt", File: "the settings of Anthropic's sandbox runtime", write: writeSRT},
	{Name: "vercel", File: "networkPolicy of a Vercel Sandbox", write: writeVercel, stricter: []string{"a name is reached by TLS alone"}},
}

// Export writes rules as a policy of a peer. If the result would be wider, and o.Widen is not set, it returns a
// [*WiderError].
func Export(to string, rules Rules, o Options) (*Conversion, error) {
	c, err := export(to, rules, o)
	if err == nil && len(c.Wider) > 0 && !o.Widen {
		return nil, &WiderError{to, c.Wider}
	}
	return c, err
}

func export(to string, rules Rules, o Options) (*Conversion, error) {
	i := slices.IndexFunc(targets, func(k Kind) bool { return k.Name == to })
	if i < 0 {
		return nil, fmt.Errorf("%q is none of %s", to, strings.Join(Names(targets), ", "))
	}
	w := &writing{reading: reading{Options: o}, labels: targets[i].labels}
	for _, s := range targets[i].stricter {
		w.stricter(s)
	}
	if err := w.take(rules); err != nil {
		return nil, err
	}
	for _, what := range rules.Beside {
		w.widerf("%s is not exported: what it denies is not denied", what)
	}
	text, err := targets[i].write(w)
	if err != nil {
		return nil, err
	}
	return &Conversion{Text: text, Stricter: w.strict, Wider: w.wide, Left: w.aside}, nil
}

// A WiderError says that a policy of a peer would allow what the rules deny.
type WiderError struct {
	To    string
	Wider []string
}

func (e *WiderError) Error() string {
	return fmt.Sprintf("a policy of %s would be wider: %s", e.To, strings.Join(e.Wider, "; "))
}

// A writing is a policy on its way to a peer.
type writing struct {
	reading
	table  *table
	labels bool // the peer has patterns of one label

	refusing []policy.Rule // that deny or ask
}

func (w *writing) widerf(format string, args ...any) {
	w.wide = appendNew(w.wide, fmt.Sprintf(format, args...))
}

// specialPrefixes are special-purpose space, as egressd's baseline has it.
var specialPrefixes = []string{
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
	"192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"168.63.129.16/32", "::/3", "4000::/2", "8000::/1", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
}

// take spells the rules out, in the order in which egressd asks them: the one that names the host most closely first, then
// deny, ask and allow. The baseline comes after rules for the same addresses or
// fewer, and presets come last.
func (w *writing) take(rules Rules) error {
	var own, presets []ranked
	w.refusing = slices.Concat(rules.Deny, rules.Ask)
	for _, list := range []struct {
		into  *[]ranked
		rules []policy.Rule
		allow bool
		order int
	}{{&own, rules.Deny, false, 0}, {&own, rules.Ask, false, 1}, {&own, rules.Allow, true, 2}, {&presets, rules.Presets, true, 2}} {
		for i := range list.rules {
			all, err := w.rankedOf(&list.rules[i], list.allow, list.order)
			if err != nil {
				return err
			}
			*list.into = append(*list.into, all...)
		}
	}
	for i := range rules.Ask {
		w.stricterf("%s is denied, where egressd asks", rules.Ask[i].Pattern)
	}
	for _, p := range specialPrefixes {
		own = append(own, ranked{clause: clause{hosts: withinText(p)}, kind: somePrefix, order: 3})
	}
	for _, list := range [][]ranked{own, presets} {
		slices.SortStableFunc(list, ranked.compare)
		for _, r := range list {
			w.clauses = append(w.clauses, r.clause)
		}
	}
	w.table = tabulate(w.clauses, rules.Open)
	return nil
}

// An entry is one line of a policy of hosts and ports.
type entry struct {
	allow bool
	hosts hostSet
	ports []span // none: all that the peer serves for these hosts
}

// A form is what lines of a peer can say, and what they mean.
type form struct {
	serves   func(hostSet) []span        // the ports that a line is for; nil: all
	says     func(entry) bool            // whether there is such a line
	single   bool                        // a line may name one port; else none
	decides  func([]entry, hostSet) bool // what the lines that are about a host decide
	resolves bool                        // a denied address holds against names
}

// denyFirst allows what a line allows and none denies.
func denyFirst(about []entry, _ hostSet) bool {
	return len(about) > 0 && !slices.ContainsFunc(about, func(e entry) bool { return !e.allow })
}

func allowFirst(about []entry, _ hostSet) bool {
	return slices.ContainsFunc(about, func(e entry) bool { return e.allow })
}

// mostSpecific has the most specific line decide, and a deny of two.
func mostSpecific(about []entry, _ hostSet) bool {
	if len(about) == 0 {
		return false
	}
	first := slices.MinFunc(about, func(a, b entry) int {
		return cmp.Or(a.hosts.specific(b.hosts), boolFirst(!a.allow, !b.allow))
	})
	return first.allow
}

// lines finds lines of a form that allow what the table allows. It leaves an allow out that
// would also allow what the table denies, or keeps it if o.Widen is set.
func (w *writing) lines(f form) (lines []entry) {
	for _, r := range w.table.rows {
		lines = append(lines, w.candidates(f, r)...)
	}
	lines = w.repaired(f, lines)
	for _, r := range w.table.rows {
		var lost []span
		for i, s := range w.table.spans {
			if r.does[i].allow && r.does[i].plain() && !w.decided(f, lines, r, s) {
				lost = append(lost, s)
			} else if !r.does[i].plain() && !w.decided(f, lines, r, s) {
				w.stricterf("%s: its rules for methods and paths are left out", r.hosts)
			}
		}
		if len(lost) > 0 {
			w.stricterf("%s is left out", spell(r.hosts, lost))
		}
	}
	return lines
}

func (f form) served(h hostSet) []span {
	if f.serves == nil || f.serves(h) == nil {
		return []span{allPorts}
	}
	return f.serves(h)
}

func (w *writing) decided(f form, lines []entry, r *row, s span) bool {
	if len(both([]span{s}, f.served(r.hosts))) == 0 {
		return false
	}
	var about []entry
	for _, e := range lines {
		if e.hosts.holds(r.hosts) && (e.ports == nil || len(both(e.ports, []span{s})) > 0) {
			about = append(about, e)
		}
	}
	return f.decides(about, r.hosts)
}

// candidates are the lines that say what a row says, or less.
func (w *writing) candidates(f form, r *row) (lines []entry) {
	add := func(allow bool, ports []span) {
		if e := (entry{allow, r.hosts, ports}); f.says(e) {
			lines = append(lines, e)
		}
	}
	var allowed, denied []span
	insists := false
	for i, s := range w.table.spans {
		part := both([]span{s}, f.served(r.hosts))
		insists = insists || r.denied[i]
		if r.does[i].allow && r.does[i].plain() || w.Widen && r.does[i].allows() {
			allowed = append(allowed, part...)
		} else {
			denied = append(denied, part...)
		}
	}
	allowed, denied = merged(allowed), merged(denied)
	if isPrefix(r.hosts) && f.resolves && insists {
		return w.deniedAddresses(f, r)
	}
	if len(allowed) == 0 && !w.covered(r.parent) {
		return nil // denied by default
	}
	switch {
	case len(allowed) > 0 && (len(denied) == 0 || w.Widen && !f.single):
		add(true, nil)
	case len(allowed) == 0:
		add(false, nil)
	case f.single && !slices.ContainsFunc(denied, span.wide):
		add(true, nil)
		for _, s := range denied {
			add(false, []span{s})
		}
	case f.single:
		for _, s := range allowed {
			if !s.wide() {
				add(true, []span{s})
			}
		}
	case w.covered(r.parent):
		add(false, nil)
	}
	return lines
}

// covered reports whether r, or a row above it, lets something pass.
func (w *writing) covered(r *row) bool {
	for ; r != nil; r = r.parent {
		if slices.ContainsFunc(r.does, func(a action) bool { return a.allow && a.plain() || w.Widen && a.allows() }) {
			return true
		}
	}
	return false
}

// deniedAddresses denies the addresses of a row for all ports, but for those that a more specific row allows at all.
func (w *writing) deniedAddresses(f form, r *row) (lines []entry) {
	rest := append([]hostSet{}, r.hosts)
	for _, other := range w.table.rows {
		closed := func(a action) bool { return !a.allow || !a.plain() }
		if other != r && r.hosts.holds(other.hosts) && !slices.ContainsFunc(other.does, closed) {
			var smaller []hostSet
			for _, h := range rest {
				for _, p := range without([]netip.Prefix{h.prefix}, other.hosts.prefix) {
					smaller = append(smaller, within(p))
				}
			}
			rest = smaller
		}
	}
	for _, h := range rest {
		if e := (entry{false, h, nil}); f.says(e) {
			lines = append(lines, e)
		}
	}
	return lines
}

func (s span) wide() bool { return s.first != s.last }

// allows reports whether the action lets some requests pass.
func (a action) allows() bool {
	return a.allow || slices.ContainsFunc(a.ways, func(w way) bool { return w.allow })
}

func merged(all []span) (joined []span) {
	for _, s := range all {
		if n := len(joined); n > 0 && int(joined[n-1].last)+1 == int(s.first) {
			joined[n-1].last = s.last
			continue
		}
		joined = append(joined, s)
	}
	return joined
}

// repaired takes out allows that let pass what the table denies, until none does.
func (w *writing) repaired(f form, lines []entry) []entry {
	for {
		bad := -1
		for _, r := range w.table.rows {
			var more []span
			for i, s := range w.table.spans {
				if r.does[i].allow && r.does[i].plain() || !w.decided(f, lines, r, s) {
					continue
				}
				if w.Widen {
					more = append(more, both([]span{s}, f.served(r.hosts))...)
					continue
				}
				bad = slices.IndexFunc(lines, func(e entry) bool {
					return e.allow && e.hosts.holds(r.hosts) && (e.ports == nil || len(both(e.ports, []span{s})) > 0)
				})
			}
			if len(more) > 0 {
				w.widerf("%s is let pass, or more of it than egressd does", spell(r.hosts, more))
			}
		}
		if bad < 0 {
			return lines
		}
		lines = slices.Delete(slices.Clone(lines), bad, bad+1)
	}
}

// spell writes hosts and ports as patterns of egressd.
func spell(h hostSet, ports []span) string {
	ports = merged(ports)
	if len(ports) == 1 && ports[0] == allPorts {
		return h.beforePort() + ":*"
	}
	if slices.Equal(ports, webPorts) {
		return h.String()
	}
	texts := make([]string, len(ports))
	for i, s := range ports {
		texts[i] = h.beforePort() + ":" + strconv.Itoa(int(s.first))
		if s.wide() {
			texts[i] += "-" + strconv.Itoa(int(s.last))
		}
	}
	return strings.Join(texts, ", ")
}

// texts are the hosts of lines, as a peer writes them.
func texts(lines []entry, allow bool, write func(entry) string) []string {
	all := []string{}
	for _, e := range lines {
		if e.allow == allow {
			all = appendNew(all, write(e))
		}
	}
	return all
}

// hostText is the host, and the port behind a colon.
func hostText(e entry) string {
	if e.ports == nil {
		if e.hosts.kind == somePrefix && e.hosts.prefix.Addr().Is6() && e.hosts.prefix.IsSingleIP() {
			return e.hosts.beforePort()
		}
		return e.hosts.String()
	}
	return e.hosts.beforePort() + ":" + strconv.Itoa(int(e.ports[0].first))
}

func isName(h hostSet) bool   { return h.kind == oneName || h.kind == belowName }
func isPrefix(h hostSet) bool { return h.kind == somePrefix }
func isIPv4(h hostSet) bool   { return isPrefix(h) && h.prefix.Addr().Is4() }
func isSingle(h hostSet) bool { return isPrefix(h) && h.prefix.IsSingleIP() }

// saysResolved notes that the peer does not look at the addresses of names, if it does not.
func (w *writing) saysResolved() {
	w.widerf("a name is let pass whose addresses are private or denied")
}

// saysOpen notes what an open policy lets pass that egressd's baseline refuses.
func (w *writing) saysOpen(lines []entry) {
	if slices.ContainsFunc(lines, func(e entry) bool { return e.allow && e.hosts == everything }) {
		w.widerf("names of the local network, such as host.internal, are let pass")
	}
}
