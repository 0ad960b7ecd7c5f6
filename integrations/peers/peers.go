// Package peers reads the policies of other sandboxes and firewalls as rules of egressd, and writes rules of egressd
// as policies of theirs. It opens no file and asks no peer: text goes in, text comes out.
//
// The result never allows a request that the original denies, unless the caller lets it widen: an allow without
// an equal is left out, and a deny without an equal denies more. The lists of a [Conversion] name both.
//
//	c, err := peers.Import("srt", text, peers.Options{})
package peers

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Conversion is a policy in another form, and where it decides otherwise.
type Conversion struct {
	Text     string
	Stricter []string // what it refuses and the original lets pass, or asks about
	Wider    []string // what it lets pass and the original refuses
	Left     []string // what of the original is about something else

	// Of an import: the lines of each list, and the lines of Stricter that are about this file alone.
	// If Open is set, the policy allows all hosts that no line names.
	Allowed, Asked, Denied, Lost int
	Open                         bool

	// Widens is how many of the lost lines Options.Widen would take by a rule that allows more.
	Widens int
}

// Nothing reports whether an imported policy lets no request pass and asks nobody.
func (c *Conversion) Nothing() bool { return !c.Open && c.Allowed+c.Asked == 0 }

// Options are how to convert.
type Options struct {
	// Name says which part of the file is meant, where a file has several: a service of smokescreen, a profile of Codex.
	Name string

	// Widen takes what has no equal by what allows more. Without it, that is left out.
	Widen bool
}

// A Kind is one peer.
type Kind struct {
	Name string
	File string // what is read: "settings.json of Claude Code"

	read     func(*reading, []byte) error
	write    func(*writing) (string, error)
	stricter []string // what holds for every conversion
	labels   bool     // of what is written: there are patterns of one label
}

// Kinds are the peers whose policies can be read, by name.
func Kinds() []Kind { return kinds }

// Names are the names of kinds.
func Names(kinds []Kind) []string {
	all := make([]string, len(kinds))
	for i, k := range kinds {
		all[i] = k.Name
	}
	return all
}

const (
	privateNames = "a name that resolves to a private address is refused, unless the address is allowed itself"
	deniedNames  = "a name that resolves to a denied address is refused"
	rangeNames   = "a name is refused that no pattern allows, even if its address is in an allowed range"
	onceEach     = "a field or parameter that a rule names has to be there exactly once, and the query has to be one that all servers read alike"
	cleanPaths   = "where methods or paths are named, a tunnel has to carry HTTP, and a path that two servers could read in two ways is refused"
)

// kinds are in the order of their names.
var kinds = []Kind{
	{Name: "claude", File: "settings.json of Claude Code: sandbox.network, and WebFetch(domain:HOST) under permissions", read: readClaude, stricter: []string{privateNames, "what is not listed is refused, where Claude Code asks"}},
	{Name: "codex", File: "config.toml or requirements.toml of Codex: permissions.NAME.network, features.network_proxy", read: readCodex, stricter: []string{privateNames}},
	{Name: "daytona", File: "networkAllowList and domainAllowList of a sandbox", read: readDaytona, stricter: []string{rangeNames, privateNames}},
	{Name: "docker", File: "sbx policy ls --json, an organisation's allow list, or proxy-config.json", read: readDocker, stricter: []string{privateNames, deniedNames}},
	{Name: "e2b", File: "the object of E2B's network option", read: readE2B, stricter: []string{privateNames, deniedNames, rangeNames, "8.8.8.8 is not opened for DNS: egressd resolves"}},
	{Name: "harden-runner", File: "a workflow with step-security/harden-runner, or the step's inputs", read: readHardenRunner, stricter: []string{privateNames, "the endpoints of GitHub that harden-runner always allows are not listed"}},
	{Name: "modal", File: "arguments of modal.Sandbox.create, as JSON or in Python", read: readModal, stricter: []string{rangeNames, privateNames}},
	{Name: "openshell", File: "network_policies of an OpenShell policy", read: readOpenShell, stricter: []string{privateNames}},
	{Name: "smokescreen", File: "an ACL of smokescreen", read: readSmokescreen, stricter: []string{privateNames}},
	{Name: "sprites", File: "the network policy of a Sprite", read: readSprites, stricter: []string{privateNames}},
	{Name: "srt", File: "the settings of Anthropic's sandbox runtime", read: readSRT, stricter: []string{privateNames}},
	{Name: "vercel", File: "networkPolicy of a Vercel Sandbox", read: readVercel, stricter: []string{privateNames, rangeNames, "a name is for port 443 alone; add NAME:PORT for TLS at another port"}},
}

// Import reads the policy of a peer. A setting about destinations that it does not know is an error.
func Import(from string, text []byte, o Options) (*Conversion, error) {
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.Name == from })
	if i < 0 {
		return nil, fmt.Errorf("%q is none of %s", from, strings.Join(Names(kinds), ", "))
	}
	r := &reading{Options: o}
	for _, s := range kinds[i].stricter {
		r.stricter(s)
	}
	if err := kinds[i].read(r, text); err != nil {
		return nil, err
	}
	f := &ruleFile{apart: r.apart, stricter: r.stricterf}
	f.write(tabulate(r.clauses, r.open))
	lost := len(r.strict) - len(kinds[i].stricter)
	if f.conditional() {
		r.stricter(cleanPaths)
	}
	if f.compares() {
		r.stricter(onceEach)
	}
	return &Conversion{
		Text: f.text(from), Stricter: r.strict, Wider: r.wide, Left: r.aside, Open: f.open, Lost: lost, Widens: r.couldWiden,
		Allowed: len(f.allow), Asked: len(f.ask), Denied: len(f.deny),
	}, nil
}

// A reading collects what a policy of a peer says.
type reading struct {
	Options
	clauses []clause
	open    bool // what no clause is about is allowed
	apart   bool // a denied address stays reachable by an allowed name
	root    schema

	families map[string]bool // by the name below which labels have patterns: whether these are of their ends

	strict, wide, aside []string
	couldWiden          int // lines that Widen would take
}

func (r *reading) stricter(what string) { r.strict = appendNew(r.strict, what) }

func (r *reading) stricterf(format string, args ...any) { r.stricter(fmt.Sprintf(format, args...)) }

func (r *reading) left(what ...string) {
	for _, s := range what {
		r.aside = appendNew(r.aside, s)
	}
}

// widens reports whether an allow that opens more than is said may be taken, and notes it
// either way. said is the line, why is what egressd cannot say of it.
func (r *reading) widens(said, why string) bool {
	if r.Widen {
		r.wide = appendNew(r.wide, fmt.Sprintf("%s allows more: %s", said, why))
		return true
	}
	r.stricterf("%s is left out: %s", said, why)
	r.couldWiden++
	return false
}

// allow adds a clause for each set of a scope. said is the line as the peer has it.
func (r *reading) allow(said string, s scope, like clause) {
	if s.part != "" && !r.Widen && len(s.inner) > 0 {
		r.stricterf("%s allows less: %s, and is taken for one label", said, s.part)
		r.couldWiden++
		s = just(s.inner...)
	}
	if s = r.oneFamily(s); s.part != "" && !r.widens(said, s.part) {
		return
	}
	r.add(true, s, like)
}

// deny adds a clause for each set of a scope. Of addresses it denies all requests: a name may lead to them, whose requests
// the rules of these addresses do not judge.
func (r *reading) deny(said string, s scope, like clause) {
	if like.conditional() && slices.ContainsFunc(s.sets, func(h hostSet) bool { return h.kind == somePrefix }) {
		r.stricterf("%s denies all requests to its addresses", said)
		like.methods, like.paths, like.only = nil, nil, narrowing{}
	}
	if s = r.oneFamily(s); s.part != "" {
		r.stricterf("%s denies more: %s", said, s.part)
	}
	r.add(false, s, like)
}

// oneFamily lets the labels below a name have patterns of their beginnings or of their ends, whichever came first. A table
// cannot hold both: "a-*.example.com" and "*-b.example.com" overlap.
func (r *reading) oneFamily(s scope) scope {
	if len(s.sets) != 1 || s.sets[0].kind != labelName {
		return s
	}
	before, after, parent := s.sets[0].aroundStar()
	if before+after == "" {
		return s
	}
	if ends, seen := r.families[parent]; seen && ends != (after != "") {
		return scope{sets: []hostSet{label("*." + parent)}, part: "patterns of other ends of that label are there, too"}
	}
	if r.families == nil {
		r.families = map[string]bool{}
	}
	r.families[parent] = after != ""
	return s
}

// asks adds an ask for each set of a scope.
func (r *reading) asks(said string, s scope, like clause) {
	if s = r.oneFamily(s); s.part != "" {
		r.stricterf("%s asks about more: %s", said, s.part)
	}
	like.ask = true
	r.add(false, s, like)
}

func (r *reading) add(allow bool, s scope, like clause) {
	like.allow = allow
	for _, h := range s.sets {
		like.hosts = h
		r.clauses = append(r.clauses, like)
	}
}

func appendNew(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
