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
	"slices"
	"strings"
)

// A Conversion is a policy in another form, and where it decides otherwise.
type Conversion struct {
	Text     string
	Stricter []string // what it refuses and the original lets pass, or asks about
	Wider    []string // what it lets pass and the original refuses
	Left     []string // what of the original is about something else
}

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
	stricter []string // what holds for every import
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
	privateNames   = "a name that resolves to a private address is refused, unless the address is allowed itself"
	deniedNames    = "a name that resolves to a denied address is refused"
	rangeNames     = "a name is refused that no pattern allows, even if its address is in an allowed range"
	cleanPaths     = "where methods or paths are named, a tunnel has to carry HTTP, and a path that two servers could read in two ways is refused"
	clusterOnly    = "pods, services and entities of the cluster are left out"
	privateDefault = "private and special-purpose addresses are refused, unless they are named"
)

// kinds are in the order of their names.
var kinds = []Kind{
	{"cilium", "CiliumNetworkPolicy for one set of pods", readCilium, []string{rangeNames, privateNames, clusterOnly}},
	{"claude", "settings.json of Claude Code: sandbox.network and WebFetch(domain:HOST)", readClaude, []string{privateNames, "what is not listed is refused, where Claude Code asks"}},
	{"cloudflare", "fields of a Container or Sandbox class, as JSON or in its source", readCloudflare, []string{privateNames, deniedNames}},
	{"codex", "config.toml of Codex: permissions.NAME.network", readCodex, []string{privateNames}},
	{"daytona", "networkAllowList and domainAllowList of a sandbox", readDaytona, []string{rangeNames, privateNames}},
	{"docker", "sbx policy ls --json, an organisation's allow list, or proxy-config.json", readDocker, []string{privateNames, deniedNames}},
	{"e2b", "the object of E2B's network option", readE2B, []string{privateNames, deniedNames, rangeNames, "8.8.8.8 is not opened for DNS: egressd resolves"}},
	{"gh-aw", "the configuration or the rules of gh-aw-firewall", readGhAw, []string{privateNames}},
	{"harden-runner", "a workflow with step-security/harden-runner, or the step's inputs", readHardenRunner, []string{privateNames, "the endpoints of GitHub that harden-runner always allows are not listed"}},
	{"init-firewall", "init-firewall.sh of a dev container", readInitFirewall, []string{privateNames, rangeNames}},
	{"microsandbox", "a network policy of microsandbox", readMicrosandbox, []string{privateNames, deniedNames, rangeNames, privateDefault}},
	{"modal", "arguments of modal.Sandbox.create, as JSON or in Python", readModal, []string{rangeNames, privateNames}},
	{"openshell", "network_policies of an OpenShell policy", readOpenShell, []string{privateNames}},
	{"opensandbox", "a network policy of OpenSandbox", readOpenSandbox, []string{privateNames, deniedNames, rangeNames}},
	{"pipelock", "a portable policy, or pipelock's configuration", readPipelock, []string{privateNames, deniedNames, rangeNames}},
	{"smokescreen", "an ACL of smokescreen", readSmokescreen, []string{privateNames}},
	{"sprites", "the network policy of a Sprite", readSprites, []string{privateNames}},
	{"squid", "squid.conf: acl and http_access", readSquid, []string{privateNames, deniedNames, rangeNames}},
	{"srt", "the settings of Anthropic's sandbox runtime", readSRT, []string{privateNames}},
	{"vercel", "networkPolicy of a Vercel Sandbox", readVercel, []string{privateNames, rangeNames, "a name is for port 443 alone; add NAME:PORT for TLS at another port"}},
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
	if f.conditional() {
		r.stricter(cleanPaths)
	}
	return &Conversion{Text: f.text(from), Stricter: r.strict, Wider: r.wide, Left: r.aside}, nil
}

// A reading collects what a policy of a peer says.
type reading struct {
	Options
	clauses []clause
	open    bool // what no clause is about is allowed
	apart   bool // a denied address stays reachable by an allowed name

	strict, wide, aside []string
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
	return false
}

// allow adds a clause for each set of a scope. said is the line as the peer has it.
func (r *reading) allow(said string, s scope, like clause) {
	if s.part != "" && !r.widens(said, s.part) {
		return
	}
	r.add(true, s, like)
}

// deny adds a clause for each set of a scope. Of addresses it denies all requests: a name may lead to them, whose requests
// the rules of these addresses do not judge.
func (r *reading) deny(said string, s scope, like clause) {
	if like.conditional() && slices.ContainsFunc(s.sets, func(h hostSet) bool { return h.kind == somePrefix }) {
		r.stricterf("%s denies all requests to its addresses", said)
		like.methods, like.paths = nil, nil
	}
	if s.part != "" {
		r.stricterf("%s denies more: %s", said, s.part)
	}
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
