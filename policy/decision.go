package policy

import (
	"fmt"
	"slices"
	"strings"
)

// A Verdict is what an [Evaluator] or a whole [Policy] says about a [Request].
// Verdicts are ordered from strictest to loosest and combine by minimum, with
// Abstain as the identity. The zero value denies.
type Verdict uint8

const (
	Deny    Verdict = iota // nothing passes
	Ask                    // a human has to say; refused where none can
	Inspect                // passes only if later, inner requests are allowed one by one
	Allow                  // passes
	Abstain                // no opinion; what remains abstained is the policy's default
)

var verdictNames = [...]string{"deny", "ask", "inspect", "allow", "abstain"}

func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return "deny"
}

// Action puts a verdict into the three words of replies and records: "allow",
// "deny" and "ask".
func (v Verdict) Action() string {
	switch v {
	case Allow, Inspect:
		return "allow"
	case Ask:
		return "ask"
	default:
		return "deny"
	}
}

// A Class is the machine-readable reason of a refusal. The values are a
// contract with scripts: they stand in replies and in the audit log.
type Class string

const (
	DefaultDeny      Class = "default-deny"
	RuleDeny         Class = "rule-deny"
	MethodDenied     Class = "method-denied"
	PathDenied       Class = "path-denied"
	HeaderDenied     Class = "header-denied"
	QueryDenied      Class = "query-denied"
	GitDenied        Class = "git-denied"     // another repository or ref, or neither a fetch nor a push
	BodyDenied       Class = "body-denied"    // the body is not what a rule lets pass, or cannot be read
	MCPDenied        Class = "mcp-denied"     // a message of MCP that calls what no rule lists
	ModelDenied      Class = "model-denied"   // a request to a model that has its provider do more than answer
	GraphQLDenied    Class = "graphql-denied" // a request of GraphQL that asks for more than a rule lists, or changes another repository
	BodyTooLarge     Class = "body-too-large" // a rule reads the body, and it is longer than one that is held
	AddressDenied    Class = "address-denied"
	NameMismatch     Class = "name-mismatch"
	NoServerName     Class = "no-server-name"
	NotTLS           Class = "not-tls"
	ECHRefused       Class = "ech-refused"
	MalformedRequest Class = "malformed-request"
	MalformedHost    Class = "malformed-host"
	UnknownSandbox   Class = "unknown-sandbox"
	ContainerRefused Class = "container-refused" // a setting of a container leads around egressd
	AskPending       Class = "ask-pending"       // a person is asked, and has not answered yet
	AskTimeout       Class = "ask-timeout"       // nor in the time for which a flow is held
	AskRejected      Class = "ask-rejected"      // a person said no, or nobody can be asked
	TooManyFlows     Class = "too-many-flows"
	ByteBudget       Class = "byte-budget" // more was to go up than a rule lets through
	PolicyNotLoaded  Class = "policy-not-loaded"
	PolicyError      Class = "policy-error"
	AuditUnavailable Class = "audit-unavailable"

	DNSTypeDenied Class = "dns-type-denied" // a question for something else than addresses
	DNSBudget     Class = "dns-budget"      // too many questions in too short a time
	Canary        Class = "canary"          // a text that nobody has a reason to send
	UDPDenied     Class = "udp-denied"      // a datagram that is no question for a name

	UpgradeDenied Class = "upgrade-denied" // a change of protocol that no rule lets, where other requests pass

	ResponseRefused       Class = "response-refused"               // what the upstream answered may not pass
	MalformedResponse     Class = "malformed-response"             // it is no response of HTTP, or larger than one may be
	CredentialRefused     Class = "credential-refused"             // another credential than the placeholder, or one over plain HTTP
	CredentialUnavailable Class = "credential-unavailable"         // what a rule injects could not be had
	CertificateRefused    Class = "client-refused-our-certificate" // an inspected client does not trust the local authority

	NetworkDNS         Class = "network-dns"
	NetworkRefused     Class = "network-refused"
	NetworkUnreachable Class = "network-unreachable"
	NetworkTLS         Class = "network-tls"
	NetworkReset       Class = "network-reset" // the upstream broke a connection off that was made, before it had answered
	NetworkTimeout     Class = "network-timeout"

	UpstreamRefused Class = "upstream-refused" // the upstream proxy refused a request that the policy allows
)

// A Layer says who wrote a rule. Across layers the strictest verdict wins.
type Layer string

const (
	Builtin      Layer = "builtin"
	Organisation Layer = "organisation"
	User         Layer = "user"
	Project      Layer = "project"
	PerSandbox   Layer = "sandbox"
)

// A Decision is a verdict and its why. Its zero value denies.
type Decision struct {
	Verdict Verdict
	Class   Class  // why not; empty when nothing is refused
	Rule    string // the id of the deciding rule: "gh-read", "preset:npm", "baseline", "default"
	Layer   Layer
	Reason  string // one sentence for a person; never text that a sandbox chose freely

	// Cause says what failed where Class is [PolicyError]. The log and the commands
	// show it. No reply does: the cause names files, and may quote the request.
	Cause string

	// Source tells apart the policies in Rego of one layer that ask. Two of them may have
	// rules of one name. It is empty for the rules of a file.
	Source string

	// AddressClass names the special-purpose space that an address-denied
	// destination lies in: "private", "metadata", "self", …
	AddressClass string

	// AllowedIf says in words what would have been allowed at the same
	// destination: "method is GET or HEAD". Empty when nothing would.
	AllowedIf []string

	// Needs says what the policy still has to see where Verdict is Inspect.
	Needs Needs

	AnyProtocol bool // a rule says "tls: any": the tunnel may carry what is not TLS on 443 or 80
	ECH         bool // a rule says "ech: allow": a hello with ECH may pass uninspected
	Upgrade     bool // the request may become a WebSocket

	// MaxBytesUp is how many bytes of payload the flow may send towards the
	// upstream: all that a tunnel carries, the body of a request, and what a
	// WebSocket carries after its head. 0 means that nothing bounds them.
	MaxBytesUp int64

	// BudgetRule and BudgetLayer say which rule MaxBytesUp is from.
	BudgetRule  string
	BudgetLayer Layer

	// Ref is the first ref of a push that Rule does not let; empty if the push is refused for another reason. A sandbox chose
	// it: no reply but that of git holds it.
	Ref string

	// Log says that a rule asked for the record of this decision to be marked.
	// Every decision is recorded either way.
	Log bool

	// Inject is the id of the rule whose credential goes with the request, one
	// of the file's injections; empty where none does, and before the request is
	// known.
	Inject string

	// Set is what egressd writes into requests to the destination, whatever the sandbox sends: "NAME: VALUE" lines. It is
	// empty where it writes nothing, or nothing passes.
	Set string

	Policy string // digest of the policy that decided, "sha256:…"

	// Question holds the ids of questions to a person, separated by spaces. A decision
	// that allows lists the questions that were approved for it; one that asks names the
	// question that is open.
	Question string

	// Missed, of an Abstain about a request, is the refusal to give if nobody allows the
	// request: the evaluator has a rule that allows other requests to the destination.
	Missed *Decision

	// Shadow is what the policy's shadow would have decided, where that differs:
	// see [Policy.Compare]. It is for the record, and no reply mentions it.
	Shadow *Decision
}

// Needs is a set of the parts of a request that a verdict still depends on.
type Needs uint8

const (
	NeedsMethod Needs = 1 << iota
	NeedsPath
	NeedsHeaders
	NeedsCredential // the request is to be given a credential, or a field
	NeedsQuery
	NeedsBody      // the whole body
	NeedsBodyStart // more of the body than was read, from its beginning
	NeedsNodes     // what the server says of the node ids in the body

	needsOfBody = NeedsBody | NeedsBodyStart
)

// ReadsBody reports whether the policy has to see the body, or more of it.
func (n Needs) ReadsBody() bool { return n&needsOfBody != 0 }

// Text is the reason, with the rule in front if a rule denies and the reason does not name it.
func (d *Decision) Text() string {
	if d.Class == DefaultDeny || d.Class == AddressDenied || strings.Contains(d.Reason, d.Rule) {
		return d.Reason
	}
	return "rule " + d.Rule + ": " + d.Reason
}

// ReasonAndCause is what a record, and who may read the policy, are told.
func (d *Decision) ReasonAndCause() string {
	if d.Cause == "" {
		return d.Reason
	}
	return d.Reason + ": " + d.Cause
}

// Spend lowers the upload budget of d to most bytes, the budget of rule, unless d has a smaller one. 0 means no budget.
func (d *Decision) Spend(most int64, rule string, layer Layer) {
	if most > 0 && (d.MaxBytesUp == 0 || most < d.MaxBytesUp) {
		d.MaxBytesUp, d.BudgetRule, d.BudgetLayer = most, rule, layer
	}
}

// exceededBy reports whether a request announces a larger body than the decision
// lets through.
func (d *Decision) exceededBy(h *HTTPRequest) bool {
	return h != nil && d.MaxBytesUp > 0 && h.BodySize > d.MaxBytesUp
}

// OverBudget returns the refusal for a request that d allowed and whose body exceeds
// d.MaxBytesUp.
func (d Decision) OverBudget() Decision {
	return Decision{
		Class: ByteBudget, Rule: d.BudgetRule, Layer: d.BudgetLayer, Policy: d.Policy, Log: d.Log,
		Reason: fmt.Sprintf("rule %s lets at most %d bytes of it go up", d.BudgetRule, d.MaxBytesUp),
	}
}

// Differs reports whether other decides otherwise than d: with another action, a
// refusal for another class or by another rule, or by looking at requests in a
// tunnel that d lets pass unread.
func (d *Decision) Differs(other *Decision) bool {
	switch {
	case d.Verdict.Action() != other.Verdict.Action():
		return true
	case d.Verdict == Allow:
		return other.Verdict == Inspect
	case d.Verdict == Inspect:
		return false
	}
	return d.Class != other.Class || d.Rule != other.Rule || d.Layer != other.Layer
}

// restricting reduces an opinion of a layer that may open nothing. Refusals stay as they
// are. An allow becomes an Abstain that keeps its bounds on other layers: needs, budget,
// log mark and question.
func restricting(d Decision) Decision {
	d.Missed = nil
	if d.Verdict != Allow && d.Verdict != Inspect {
		return d
	}
	left := Decision{Verdict: Abstain, Needs: d.Needs, AllowedIf: d.AllowedIf, Log: d.Log, Question: d.Question}
	left.Spend(d.MaxBytesUp, d.BudgetRule, d.BudgetLayer)
	if d.Verdict == Inspect && d.Needs == 0 {
		left.Needs = NeedsMethod // it did not say what, so a request at least
	}
	return left
}

// unmentioned reports whether d denies only because no list of hosts mentions the destination. A line in a list opens it.
func (d *Decision) unmentioned() bool {
	return d.Verdict == Deny && d.Class == DefaultDeny && d.Rule == "default"
}

// combine returns the stricter of two opinions; at the same verdict the
// reason and rule of the first stand, unless it is [Decision.unmentioned] and the second denies whatever a list says. An option holds only where both opinions give it.
// The needs of an Abstain are kept, since the request may yet be refused. The stricter
// opinion names the credential; if it names none, the other does. The smaller budget
// counts. Log marks and approved questions of both stand.
func combine(a, b Decision) Decision {
	if a.Verdict == Abstain || b.Verdict < a.Verdict || b.Verdict == Deny && !b.unmentioned() && a.unmentioned() {
		a, b = b, a
	}
	if b.Verdict != Abstain {
		a.AnyProtocol = a.AnyProtocol && b.AnyProtocol
		a.ECH = a.ECH && b.ECH
		a.Upgrade = a.Upgrade && b.Upgrade
	}
	if a.Inject == "" && a.Verdict != Deny {
		a.Inject = b.Inject
	}
	if a.Set == "" && a.Verdict != Deny {
		a.Set = b.Set
	}
	a.Spend(b.MaxBytesUp, b.BudgetRule, b.BudgetLayer)
	a.Log = a.Log || b.Log
	a.Question = bothQuestions(a.Question, b.Question)
	a.Needs |= b.Needs
	if a.AllowedIf == nil && a.Verdict > Ask {
		a.AllowedIf = b.AllowedIf
	}
	switch {
	case a.Verdict != Abstain:
		a.Missed = nil
	case a.Missed == nil:
		a.Missed = b.Missed
	}
	return a
}

// bothQuestions joins the ids of questions, each once.
func bothQuestions(a, b string) string {
	switch {
	case a == "" || a == b:
		return b
	case b == "":
		return a
	}
	all := append(strings.Fields(a), strings.Fields(b)...)
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " ")
}
