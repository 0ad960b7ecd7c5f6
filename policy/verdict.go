package policy

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
	AddressDenied    Class = "address-denied"
	NameMismatch     Class = "name-mismatch"
	NoServerName     Class = "no-server-name"
	NotTLS           Class = "not-tls"
	ECHRefused       Class = "ech-refused"
	MalformedRequest Class = "malformed-request"
	MalformedHost    Class = "malformed-host"
	UnknownSandbox   Class = "unknown-sandbox"
	AskPending       Class = "ask-pending"  // a person is asked, and has not answered yet
	AskTimeout       Class = "ask-timeout"  // nor in the time for which a flow is held
	AskRejected      Class = "ask-rejected" // a person said no, or nobody can be asked
	TooManyFlows     Class = "too-many-flows"
	ByteBudget       Class = "byte-budget" // more was to go up than a rule lets through
	PolicyNotLoaded  Class = "policy-not-loaded"
	PolicyError      Class = "policy-error"
	AuditUnavailable Class = "audit-unavailable"

	DNSTypeDenied Class = "dns-type-denied" // a question for something else than addresses
	DNSBudget     Class = "dns-budget"      // too many questions in too short a time
	Canary        Class = "canary"          // a text that nobody has a reason to send
	UDPDenied     Class = "udp-denied"      // a datagram that is no question for a name

	ResponseRefused       Class = "response-refused"               // what the upstream answered may not pass
	CredentialUnavailable Class = "credential-unavailable"         // what a rule injects could not be had
	CertificateRefused    Class = "client-refused-our-certificate" // an inspected client does not trust the local authority

	NetworkDNS         Class = "network-dns"
	NetworkRefused     Class = "network-refused"
	NetworkUnreachable Class = "network-unreachable"
	NetworkTLS         Class = "network-tls"
	NetworkTimeout     Class = "network-timeout"
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

	// Log says that a rule asked for the record of this decision to be marked.
	// Every decision is recorded either way.
	Log bool

	// Inject is the id of the rule whose credential goes with the request, one
	// of [File.Injections]; empty where none does, and before the request is
	// known.
	Inject string

	Policy string // digest of the policy that decided, "sha256:…"

	// Question holds the ids of the questions to a person that the decision stands on,
	// a space between two: of those that were answered with yes where it lets pass, else of
	// the one that has to be.
	Question string

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
	NeedsCredential // the request is to be given a credential
)
