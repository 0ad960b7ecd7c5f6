// Package file reads, checks and edits the YAML of egressd.yaml and of rule files. It refuses the whole file for a
// key that it does not know, and for a rule that contradicts another.
//
//	f, err := file.Parse(name, text)
package file

import (
	"bytes"
	"time"

	"github.com/egressd/egressd/policy"
)

// A File is a whole egressd.yaml, read and found free of contradictions. It is
// made by [Parse] and not changed afterwards. Paths and socket addresses in
// it may still hold variables like ${HOME} until [File.Expand].
type File struct {
	// Listen is where egressd listens.
	Listen Listen

	// Default is what happens to a destination that no line speaks of: Deny,
	// which is also the default, or Allow for a deny-list in front of general
	// work. The baseline of private and special addresses holds either way.
	Default policy.Verdict

	// Mode says whether what no line speaks of is let pass and recorded, for a while. Default: the rules are enforced.
	Mode Enforcement

	// Allow, Deny and Ask are the rules. Their order means nothing: deny beats ask
	// beats allow, unless the other rule names the host more closely. An
	// empty file allows nothing. An ask is put to a person where egressd serve has a
	// listen.admin, and refused where nobody can answer.
	Allow, Deny, Ask []policy.Rule

	// AllowFiles and DenyFiles are files that [policy.ReadHostList] reads. A relative path is relative
	// to the folder of the configuration. Default: none.
	AllowFiles, DenyFiles []string

	// ApproveWithin is a policy file. Where sandboxes ask for what it allows, no person is asked. A relative path is relative to
	// the folder of the configuration. Default: none.
	ApproveWithin string

	// DenyMessage is what programs are told beside the reason of a denial, such as whom to ask: one line. Default: none.
	DenyMessage string

	// Ceiling, where Ceiled is set, is what the layers below the organisation may
	// open at most: what lines, presets and Rego of theirs, and "default: allow",
	// allow beyond it is denied. It opens nothing by itself.
	Ceiling []policy.Rule

	// Ceiled is set where the key "ceiling" is present, even with an empty list,
	// under which nothing is opened.
	Ceiled bool

	// Presets names sets of allow rules that ship with egressd. They rank below
	// every line of the file: what a deny of the file covers, no preset opens. A preset with
	// parameters is none of them: its lines are in Allow, and [PresetWith] has its text.
	Presets []string

	// Rego names policies in Rego: further opinions, without which the file does
	// not compile. Where they allow what no line of the file speaks of, it passes;
	// what a line denies stays denied.
	Rego []RegoSource

	// Labels describe the machine, such as ring: canary. Conditions of Rego entries name them; they decide nothing else.
	Labels map[string]string

	// UnsafeAllow opens what the baseline keeps shut even where Allow names it:
	// loopback, link-local, cloud metadata, egressd's own addresses, and the
	// names for them. Each is an allow rule as well, and is named at every start.
	UnsafeAllow []policy.Rule

	// Tests are decisions that the file promises. A file with a red test does
	// not compile.
	Tests []Test

	// Sandboxes are who may ask. Where none is listed there is one, "default",
	// which is whoever reaches a listener.
	Sandboxes []SandboxRules

	// Docker is the engine that says which container is which.
	Docker Docker

	// Placeholders are where the addresses come from that stand for names in captured sandboxes. Default: the range of
	// egressd.
	Placeholders PlaceholderPrefixes

	// TLS is about certificates and hellos.
	TLS TLS

	// Audit is about the log.
	Audit Audit

	// Upstream is how egressd itself reaches the world.
	Upstream Upstream

	// Metrics is where programs on other machines read the metrics.
	Metrics MetricsListener

	// Notify is who is told of questions, and where answers by link arrive.
	Notify Notify

	// Limits bound what one sandbox can use up.
	Limits Limits

	// Canaries are texts that nothing may send. Default: none.
	Canaries []CanaryFile

	// Budgets bound what each sandbox sends to some hosts in a span of time. Default: none.
	Budgets []SpanLimit

	// Credentials are secrets that egressd adds to requests, and that no sandbox holds. Default: none.
	Credentials []NamedCredential

	name   string
	kind   fileKind
	text   []byte
	places map[string]policy.Position
	unset  policy.FileError // see [File.Unset]

	expansions [][]byte // texts of the presets with parameters
}

// Listen lists listeners as "127.0.0.1:3128", "[::1]:3128" or "unix:/path", and
// those of the proxy also as "tls:127.0.0.1:3443", where clients speak TLS first.
type Listen struct {
	// Proxy takes HTTP, CONNECT and SOCKS5 on each of its listeners. Default:
	// 127.0.0.1:3128. An empty list means none, which makes sense where every
	// sandbox has a listener of its own.
	Proxy []string

	// Transparent takes in connections that were going elsewhere, each on an
	// address and a port of one family: "10.99.0.2:3129" where NAT has redirected
	// them, "tproxy:127.0.0.1:3129" where tproxy has taken them. Default: none.
	Transparent []string

	// DNS answers queries over UDP and TCP, each on an address and a port. A
	// sandbox is known there by its source address, or is the only one. Default:
	// none.
	DNS []string

	// Enter are Unix sockets at which sandboxes attach their own networks. egressd
	// identifies the sandbox by its user, or there is only one. Default: none.
	Enter []string

	// Admin is the operator's listener: a Unix socket, TCP on a loopback address,
	// where a token has to be shown, or [NoAdmin]. No rule opens it. Default: a
	// Unix socket in the user's state folder.
	Admin string

	// ClientCA is a PEM file of the authorities of client certificates. Where it
	// is given, TLS listeners require one. A relative path is relative to the
	// folder of the configuration. Default: none, and none are asked for.
	ClientCA string

	// ServerNames are names by which clients reach TLS listeners, beside their
	// addresses, localhost and the name of the host. Default: none.
	ServerNames []string

	// OpenToNetwork lets proxy and DNS listeners beyond loopback serve whoever can
	// reach them. Default: false, and egressd serve refuses to start with such a listener.
	OpenToNetwork bool
}

// TLS is the section "tls".
type TLS struct {
	// CADir holds the local authority for inspection. Default: the command's
	// state folder.
	CADir string

	// Never lists destinations whose tunnels are never inspected, whatever is
	// asked for resolves to. A rule of the file that would need it is an error;
	// what a preset allows there only in part is refused. Default: none.
	Never []policy.Pattern

	// ECH says what happens to a hello with encrypted client hello in a tunnel
	// that is not inspected: "refuse", the default, or "allow" for every rule.
	ECH string

	// ExtraRoots are PEM files of authorities that upstream certificates may
	// come from, beside the system's. Default: none.
	ExtraRoots []string
}

// Upstream is the section "upstream". Proxy variables of the environment are
// ignored.
type Upstream struct {
	// DNS lists resolvers in the order in which they are asked: "system" for
	// those of the host, or an address with an optional port. Default: system.
	DNS []string

	// DNSTypes are the types of records, beside addresses, that sandboxes may ask for of the names that they may
	// resolve: "SRV" and "TXT". Default: none.
	DNSTypes []string

	// Proxy is what egressd connects through. Default: nil, and egressd connects directly.
	Proxy *UpstreamProxy
}

// Limits is the section "limits".
type Limits struct {
	// Connections is how many clients may be connected at once; a sandbox that has as
	// many as are free gets no more. Default: 20000.
	Connections int

	// FlowsPerSandbox is how many flows one sandbox may have open; one more is
	// refused with too-many-flows. Default: 4096.
	FlowsPerSandbox int

	// HeadBytes is the size of an HTTP request head; a longer one is answered
	// with 431. Default: 64 KiB.
	HeadBytes int

	// HeaderFields is how many fields a head may have; more are answered with
	// 431. Default: 100.
	HeaderFields int

	// ResponseHeadBytes is the size of a response's head; a longer one is refused with
	// malformed-response. Default: 256 KiB.
	ResponseHeadBytes int

	// ResponseFields is how many fields a response's head may have. Default: 1000.
	ResponseFields int

	// HeadTimeout is the time to send a whole head or SOCKS greeting.
	// Default: 10s.
	HeadTimeout time.Duration

	// BodyBytes is the size of a request's body that a rule reads. It is held in
	// memory until it is decided. Default: 32 MiB.
	BodyBytes int

	// HelloBytes is the size of a TLS ClientHello over all its records.
	// Default: 64 KiB.
	HelloBytes int

	// HelloTimeout is the time from the reply to the first complete hello or
	// head inside a tunnel. Default: 10s.
	HelloTimeout time.Duration

	// DialTimeout is the time to connect to all addresses of a name together.
	// Default: 15s.
	DialTimeout time.Duration

	// IdleTimeout is the time without a byte in either direction after which
	// a tunnel or a kept-alive connection is closed. Default: 10m.
	IdleTimeout time.Duration

	// TunnelLifetime is how long a tunnel may last, whatever moves in it: then
	// it is closed, and its client has to ask again. From 5s to 720h. Default: 24h.
	TunnelLifetime time.Duration

	// AskWait is how long a connection or request is held for a person where a rule
	// asks one; then it is refused with ask-timeout, and its client may come again. From
	// 1s to 10m, or 0: none is held. Default: 30s.
	AskWait time.Duration

	// DNSQueriesPerSecond is how many questions one sandbox may ask listen.dns
	// over a longer time, and five times as many at once; more are refused with
	// dns-budget. Default: 200.
	DNSQueriesPerSecond int

	// DNSNameBytes is how much the names that one sandbox has looked up below one
	// registered domain may tell in an hour, in bytes, estimated from their
	// number, length and randomness; more are refused with dns-budget.
	// Default: 4096.
	DNSNameBytes int
}

// defaults returns what a file that says only "version: 1" means.
func defaults() File {
	return File{
		Listen:   Listen{Proxy: []string{"127.0.0.1:3128"}},
		TLS:      TLS{ECH: "refuse"},
		Audit:    Audit{Durability: "process", SegmentBytes: 64 << 20},
		Upstream: Upstream{DNS: []string{"system"}},
		Limits: Limits{
			Connections: 20000, FlowsPerSandbox: 4096,
			HeadBytes: 64 << 10, HeaderFields: 100, HeadTimeout: 10 * time.Second, ResponseHeadBytes: 256 << 10, ResponseFields: 1000,
			BodyBytes: 32 << 20, HelloBytes: 64 << 10, HelloTimeout: 10 * time.Second,
			DialTimeout: 15 * time.Second, IdleTimeout: 10 * time.Minute, TunnelLifetime: 24 * time.Hour, AskWait: 30 * time.Second,
			DNSQueriesPerSecond: 200, DNSNameBytes: 4096,
		},
	}
}

// Parse reads an egressd.yaml. name is used in messages only. The error is
// a [policy.FileError] that names every problem with its line and column; there is
// never a value and an error.
func Parse(name string, text []byte) (*File, error) { return parseAs(userFile, name, text) }

// ParsePlaces reads only the sections "listen" and "audit" of an egressd.yaml. It succeeds if another part of the file is
// wrong, so that commands find the daemon and its log while a person edits the file.
func ParsePlaces(name string, text []byte) (*File, error) {
	r := newReader(userFile, name)
	f := defaults()
	if root := r.document(text); root != nil {
		r.placesOf(&f, root)
	} else {
		r = newReader(userFile, name)
		for _, key := range []string{"listen", "audit"} {
			if root := r.document(sectionOf(text, key)); root != nil {
				r.placesOf(&f, root)
			}
		}
	}
	if len(r.problems) > 0 {
		return nil, r.problems.Sorted()
	}
	f.name, f.text, f.places = name, bytes.Clone(text), r.places
	return &f, nil
}

// sectionOf returns the lines of a section at the top of a file, with blank lines before them so that places stay right.
func sectionOf(text []byte, key string) []byte {
	out := []byte("{}")
	begun := false
	for i, line := range bytes.SplitAfter(text, []byte("\n")) {
		switch {
		case bytes.HasPrefix(line, []byte(key+":")):
			out, begun = append(bytes.Repeat([]byte("\n"), i), line...), true
		case begun && len(line) > 0 && !bytes.ContainsAny(line[:1], " #\r\n"):
			return out
		case begun:
			out = append(out, line...)
		}
	}
	return out
}

// ParseOrganisation reads an organisation.yaml, as [Parse] does: rules, Rego,
// ceiling, tests, "tls.never" and "audit.sinks". Its rules have the layer [policy.Organisation], and it is
// for [Layers].
func ParseOrganisation(name string, text []byte) (*File, error) {
	return parseAs(organisationFile, name, text)
}

// ParseProject reads a project.yaml, as [Parse] does: rules that loosen nothing
// beside their destination, Rego and tests. It is for [Layers].
func ParseProject(name string, text []byte) (*File, error) {
	return parseAs(projectFile, name, text)
}

func parseAs(kind fileKind, name string, text []byte) (*File, error) {
	r := newReader(kind, name)
	root := r.document(text)
	f := defaults()
	if root != nil {
		r.file(&f, root)
	}
	if len(r.problems) > 0 {
		return nil, r.problems.Sorted()
	}
	f.name, f.kind, f.text, f.places = name, kind, bytes.Clone(text), r.places
	return &f, nil
}

// A fileKind says whose file it is. The zero value is the user's, the whole
// egressd.yaml.
type fileKind uint8

const (
	userFile fileKind = iota
	organisationFile
	projectFile
)

func (k fileKind) layer() policy.Layer {
	return [...]policy.Layer{userFile: policy.User, organisationFile: policy.Organisation, projectFile: policy.Project}[k]
}

// keys are those that a file of the kind has; nil for all.
func (k fileKind) keys() []string {
	switch k {
	case organisationFile:
		return []string{"version", "allow", "deny", "ask", "ceiling", "deny_message", "presets", "rego", "labels", "unsafe_allow", "tests", "tls", "audit"}
	case projectFile:
		return []string{"version", "allow", "deny", "ask", "presets", "rego", "tests"}
	}
	return nil
}
