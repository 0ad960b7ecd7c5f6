package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

type Position struct{ Line, Column int }

// A Rule is one line of a list: a pattern, and what more is said about it.
type Rule struct {
	// Pattern is the set of hosts and ports that the rule is about. In YAML it
	// is the line itself, or "host" in a mapping.
	Pattern Pattern

	// Methods narrow the rule to requests of these methods. GET includes HEAD.
	// Empty: any method. A rule with methods or paths needs requests that can be
	// seen: tunnels to its hosts are inspected.
	Methods []string

	// Paths narrow the rule to requests under these paths: "/a/**" for any
	// depth, "*" inside a segment. Empty: any path. A path that two servers
	// could read in two ways matches every deny and no allow.
	Paths []PathPattern

	// PathsFold ("paths_fold: true") says that the server takes upper case in paths
	// for lower case, so Paths are compared without case. Without Paths it only has a
	// file warned of a deny that compares the paths of the host byte for byte.
	PathsFold bool

	// Headers narrow the rule to requests that have each of these fields exactly once.
	Headers []FieldRule

	// Query narrows the rule to requests whose query has each of these parameters
	// exactly once, and with QueryOnly no others.
	Query     []FieldRule
	QueryOnly bool

	// JSON narrows the rule to requests whose body is JSON and has each of these values.
	JSON []JSONRule

	// MCP narrows an allow to some messages of the Model Context Protocol; nil for any request.
	MCP *MCPRule

	// Model narrows an allow to requests that only have a model answer; nil for any request.
	Model *ModelRule

	// GraphQL narrows an allow to some requests of GraphQL; nil for any request.
	GraphQL *GraphQLRule

	// Git narrows an allow to fetches of some repositories; nil for any request.
	Git *GitRule

	// LFS narrows an allow to what a git server's answers about large files name; nil for any request.
	LFS *LFSRule

	// Reason is one sentence for whoever is refused, and for the log.
	Reason string

	// ID names the rule in replies and in the log. Default: its position, as
	// in "allow[3]", counted from 0. IDs are unique in a file.
	ID string

	// AnyProtocol ("tls: any") lets a tunnel to port 443 or 80 carry what is
	// neither TLS nor HTTP. Only for an allow without methods and paths.
	AnyProtocol bool

	// ECH ("ech: allow") lets a hello with encrypted client hello pass. Only
	// for an allow without methods and paths.
	ECH bool

	// Upgrade ("upgrade: websocket") lets requests of a rule with methods or
	// paths become a WebSocket, in which nothing is judged any more. One
	// without lets them anyway. Only in the list "allow" of the file.
	Upgrade bool

	// MaxBytesUp is how many bytes of payload each request, or a tunnel that is not inspected, may send by this rule; 0 for
	// any number. Only for an allow.
	MaxBytesUp int64

	// Inject is the credential that requests of this rule are given; nil for
	// none. Only in the list "allow" of the file, and only for one exact host.
	// Tunnels to it are inspected.
	Inject *Inject

	// Credential names the credential of the file that requests of this rule are given; empty for none. The reader of the
	// file sets it: a rule of the list "allow" that names exactly a host of a credential has it.
	Credential string

	// Set ("set: {NAME: VALUE}") are header fields that every request to the host of the rule has, whichever rule decides about
	// it. Fields of these names in the sandbox's request are dropped. Only in the list "allow" of the file, and only for one
	// exact host. Tunnels to it are inspected.
	Set []SetField

	// At is where the rule is written. It is zero for a rule that no file holds.
	At Position
}

// Conditional reports whether the rule depends on what a request is, beyond its destination.
func (r *Rule) Conditional() bool {
	c := r.conditions(Deny)
	return c.conditional()
}

// Plain reports whether the rule says no more than which requests it is about: it has no option, no credential, no reason
// and no id of its own.
func (r *Rule) Plain() bool {
	return r.MaxBytesUp == 0 && !r.AnyProtocol && !r.ECH && !r.Upgrade && !r.Injects() && len(r.Set) == 0 && r.Reason == "" && strings.HasSuffix(r.ID, "]")
}

// ReadsFurther reports whether the rule depends on more of a request than its method and path.
func (r *Rule) ReadsFurther() bool { return len(r.requirements()) > 0 }

// Inspects reports whether tunnels to the rule's hosts have to be inspected.
func (r *Rule) Inspects() bool { return r.Conditional() || r.Upgrade || r.Injects() || len(r.Set) > 0 }

// Injects reports whether requests of the rule are given a credential.
func (r *Rule) Injects() bool { return r.Inject != nil || r.Credential != "" }

// An Inject is a credential that egressd adds to requests, so that the sandbox
// never holds it: one header field, whose secret part comes from exactly one of
// File, Env and Command.
type Inject struct {
	// Header is the name of the field, as it is to be sent. A field of that
	// name in the sandbox's request is replaced.
	Header string

	// Value is the field's value, with "{}" once, where the secret stands.
	// Default: "{}".
	Value string

	// File holds the secret. A relative path is relative to the folder of the
	// configuration.
	File string

	// Env is a variable of egressd's environment that holds the secret.
	Env string

	// Command prints the secret: a program, by its name or absolute path, and
	// its arguments. No shell reads it.
	Command []string

	// Placeholder is what a sandbox may send in place of the secret. Default:
	// none.
	Placeholder string

	// Refresh is how long the secret is used before it is read again, from a
	// second to a day. Default: 0, which leaves it to whoever reads it.
	Refresh time.Duration
}

// An Injection is the credential of a rule, and where it holds.
type Injection struct {
	Rule    string // the rule's id, as in [Decision].Inject
	Pattern Pattern
	Inject  Inject // the zero value where Credential names one

	Credential string // as in [Rule]
	LFS        bool   // the rule has an [LFSRule]
}

// Covers reports whether d, by the host that was asked for, is a destination
// that the credential may go to.
func (i Injection) Covers(d Destination) bool {
	if d.Addr.IsValid() {
		return i.Pattern.MatchesAddr(d.Addr, d.Port)
	}
	return i.Pattern.MatchesName(d.Host, d.Port)
}

// Host is the one name or address that the credential is for, in the form of
// [Destination.Host].
func (i Injection) Host() string { return i.Pattern.Host() }

// A rule is a [Rule] in the shape in which it is asked.
type rule struct {
	effect Verdict
	ports  portSet
	conditions
	unless  []*conditions // of a tie: requests that a closer rule matches; each has a condition
	options loosened
	injects bool  // an allow that adds a credential
	sets    bool  // an allow to whose host requests have fields of egressd
	most    int64 // bytes that an allow lets up; 0 for any number
	id      string
	reason  string // never empty for an allow
	at      Position

	overDeny bool        // a temporary allow that decides before denies of the same host
	sandbox  string      // whom alone it is for, or ""
	kind     Template    // of sandboxes for which alone it is; the zero value where it names none
	over     func() bool // reports that it is none any more; nil for never
}

// loosened is what an allow loosens beside the destination.
type loosened struct{ anyProtocol, ech, upgrade bool }

// Conditions says what the rule asks of a request: "method is GET or HEAD". It is empty for a rule without conditions.
func (r *Rule) Conditions() string {
	c := r.conditions(Deny)
	return c.words()
}

func (r *Rule) compile(effect Verdict, ech bool) rule {
	compiled := rule{
		effect: effect, ports: r.Pattern.AnyPort().ports, conditions: r.conditions(effect),
		id: r.ID, reason: r.Reason, at: r.At,
	}
	if effect == Allow {
		compiled.ports = r.Pattern.ports
		compiled.options = loosened{anyProtocol: r.AnyProtocol, ech: r.ECH || ech, upgrade: r.Upgrade}
		compiled.injects, compiled.sets, compiled.most = r.Injects(), len(r.Set) > 0, r.MaxBytesUp
		if r.Reason == "" {
			compiled.reason = "rule " + r.ID + " allows it"
		}
	}
	return compiled
}

// stands reports whether there is such a rule for a sandbox.
func (r *rule) stands(who string) bool {
	if _, fits := r.kind.ID(who); r.sandbox != "" && r.sandbox != who && !fits {
		return false
	}
	return r.over == nil || !r.over()
}

// holds, holdsMethod, holdsMethodOf, work, sees, conditional and words are those of the conditions, with unless.
func (r *rule) holds(request *HTTPRequest) bool {
	return r.conditions.holds(request) && !slices.ContainsFunc(r.unless, func(c *conditions) bool { return c.holds(request) })
}

// awaits is that of the conditions, with unless.
func (r *rule) awaits(request *HTTPRequest) Needs {
	n := r.conditions.awaits(request)
	if n == 0 && r.conditions.holds(request) {
		for _, c := range r.unless {
			n |= c.awaits(request)
		}
	}
	return n
}

func (r *rule) holdsMethod(method string) bool {
	return r.conditions.holdsMethod(method) && !slices.ContainsFunc(r.unless, func(c *conditions) bool {
		return len(c.paths)+len(c.further) == 0 && c.holdsMethod(method)
	})
}

func (r *rule) holdsMethodOf(request *HTTPRequest) bool {
	return r.conditions.holdsMethodOf(request) && !slices.ContainsFunc(r.unless, func(c *conditions) bool {
		return len(c.paths)+len(c.further) == 0 && c.holdsMethodOf(request)
	})
}

func (r *rule) work(request *HTTPRequest) int {
	n := r.conditions.work(request)
	for _, c := range r.unless {
		n += c.work(request)
	}
	return n
}

func (r *rule) sees() Needs {
	n := r.conditions.needs()
	for _, c := range r.unless {
		n |= c.needs()
	}
	return n
}

func (r *rule) conditional() bool { return r.sees() != 0 }

func (r *rule) words() string {
	var parts []string
	if own := r.conditions.words(); own != "" {
		parts = append(parts, own)
	}
	for _, c := range r.unless {
		parts = append(parts, "not ("+c.words()+")")
	}
	return strings.Join(parts, " and ")
}

// needs says what the rule has to see of a request.
func (r *rule) needs() (n Needs) {
	n = r.sees()
	if r.injects || r.sets {
		n |= NeedsCredential
	}
	return n
}

// single reports whether the rule is a line for one request without more, as [Opening.Line] has it. A rule with an ID of its
// own says that this request alone is meant.
func (r *rule) single() bool {
	one := len(r.methods) == 1 || len(r.methods) == 2 && slices.Contains(r.methods, "GET") && slices.Contains(r.methods, "HEAD")
	unnamed := strings.HasSuffix(r.id, "]") || strings.HasPrefix(r.id, "grant:")
	return one && unnamed && len(r.further) == 0 && len(r.paths) == 1 && !r.paths[0].folds && !strings.Contains(r.paths[0].text, "*") && !r.options.anyProtocol && !r.options.upgrade && !r.injects && !r.sets && r.most == 0
}

// PlainMethod reports whether text is a method short and plain enough to be
// said in a reason.
func PlainMethod(text string) bool {
	if text == "" || len(text) > 32 {
		return false
	}
	for i := range len(text) {
		if !Unreserved(text[i]) {
			return false
		}
	}
	return true
}

// A Grant is a line that somebody has added to a file for a while. The daemon makes it from an operator's request, and
// compiles the next policy without it when its time has ended.
//
// An Allow opens what no line of the file speaks of. With OverDeny it counts like a line of the list "allow" that also
// decides before a deny or an ask for the same hosts; lines that name the host more closely still decide before it. All
// ceilings must include an Allow, and the tests of the files must pass. An Allow for one sandbox opens the same in that
// sandbox's list. It makes no exception to the baseline.
//
// A Deny is asked before all lines of the file, whichever names the host more closely. The tests of the files do not
// apply to it; otherwise nobody could deny a host that a test promises.
type Grant struct {
	ID     string  // of the rule in decisions; one with a colon is that of no line
	Effect Verdict // Allow or Deny
	Opening
	Sandbox  string // whom alone it is for; empty: everybody
	OverDeny bool   // of an Allow

	// Over reports whether the time of an Allow has ended. An ended Allow opens nothing, even before a policy without it
	// is in force. Every decision about the line calls Over. A nil Over means that the Allow never ends.
	Over func() bool
}

func (g *Grant) compile(ech bool) rule {
	line := g.Line(g.ID)
	compiled := line.compile(g.Effect, ech)
	compiled.sandbox = g.Sandbox
	if g.Effect == Allow {
		compiled.over, compiled.overDeny = g.Over, g.OverDeny
		if g.OverDeny {
			compiled.reason += ", over what other rules deny"
		}
	}
	return compiled
}

// Text is what the digest covers of the grant.
func (g *Grant) Text() []byte {
	return fmt.Appendf(nil, "grant %q %s %q %q %t", g.ID, g.Effect, g.String(), g.Sandbox, g.OverDeny)
}
