package egress

import (
	"cmp"
	"fmt"

	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// A Refusal is why something did not pass: by policy, by egressd itself, or
// by the network. It is every error that a front end gets from a gate or a
// flow, and front ends render it; nothing in it may be hidden from the
// sandbox except what Decision's documentation says.
type Refusal struct {
	ID          record.ID
	Destination policy.Destination // zero where none could be parsed
	Method      string             // of an HTTP request that was seen
	Unnamed     bool               // no rule can name that request alone
	Hint        string             // a sentence for the client: what to do instead; constant text
	FixFlags    string             // [Config.FixFlags]
	Decision    policy.Decision
	AskAt       string // [policy.InquiryURL] if egressd answers there
	Message     string // [DenyMessages] of whoever wrote the rule; "" where they have nothing to say
	Note        string // of the close record, of a flow that could not be connected
	Final       bool   // the same request fails each time, though others of its class may pass later
	MCPID       string // of the message of MCP that was refused, as it stands there; "" for all else
	Summed      bool   // ID may stand for denials of other requests, too: no command may name it

	cause error
}

// Unwrap returns what the resolver said, where a name server is to say it on, or
// nil. It is not for the text of a reply.
func (r *Refusal) Unwrap() error { return r.cause }

// Fix returns the command that allows exactly a request that no rule mentions. It returns ""
// for every other refusal, and for a name that looks like data: people paste such commands unread. logs/story finds the
// same command for a record, and config/explain for a request that nobody made.
func (r *Refusal) Fix() string {
	if r.Decision.Class != policy.DefaultDeny || r.Decision.Layer == policy.PerSandbox && r.Decision.Rule != "default" || policy.LooksLikeData(r.Destination.Host) {
		return ""
	}
	if r.Unnamed || r.Summed && r.Method != "" {
		return ""
	}
	host := r.Destination.Host
	if port := r.Destination.Port; port != 0 && (r.Summed || port != 443 && port != 80) {
		host = r.Destination.String()
	}
	if !r.Summed { // --from takes only the destination of the record, and its port
		host += " --from " + r.ID.String()
	}
	return shell.Program() + " allow " + host + r.FixFlags
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("%s (%s): %s", r.Decision.Class, r.ID, r.Decision.Reason)
}

var tooManyFlows = policy.Decision{Class: policy.TooManyFlows, Rule: "limits", Layer: policy.Builtin, Reason: "the sandbox has too many connections open (limits.flows_per_sandbox)"}

// stopping is for what comes after Shut.
var stopping = policy.Decision{
	Class:  policy.PolicyNotLoaded,
	Rule:   "stopping",
	Layer:  policy.Builtin,
	Reason: "egressd is stopping",
}

var unavailable = policy.Decision{
	Class:  policy.AuditUnavailable,
	Rule:   "audit",
	Layer:  policy.Builtin,
	Reason: "what cannot be recorded may not pass",
}

func (f *Flow) refusal(d policy.Decision) *Refusal {
	d.Shadow = nil // it is for the record alone
	r := &Refusal{ID: f.id, Destination: f.request.Destination, Decision: d, FixFlags: f.gate.config.FixFlags, Summed: f.seq == sharedID}
	if f.gate.Inquiries.On() {
		r.AskAt = policy.InquiryURL
	}
	r.Message = f.gate.DenyMessages().beside(&d)
	if h := f.request.HTTP; h != nil {
		r.Method, r.Unnamed = h.Method, h.Upgrade || !policy.NamesOne(h.Method, h.Path)
		if d.Class == policy.MCPDenied {
			r.MCPID = h.MCPMessageID()
		}
	}
	return r
}

// DenyMessages are what programs are told beside the reason of a denial: the operator's words, such as whom to ask.
type DenyMessages struct {
	Organisation string // for denials by the organisation's rules, and for all others if User is ""
	User         string
}

// SetDenyMessages has refusals from now on carry these.
func (g *Gate) SetDenyMessages(m DenyMessages) { g.denyMessages.Store(&m) }

// DenyMessages returns what was set last.
func (g *Gate) DenyMessages() DenyMessages {
	if m := g.denyMessages.Load(); m != nil {
		return *m
	}
	return DenyMessages{}
}

// beside returns the message for a refusal, or "" for what no operator could allow.
func (m DenyMessages) beside(d *policy.Decision) string {
	switch d.Class {
	case policy.DefaultDeny, policy.RuleDeny, policy.MethodDenied, policy.PathDenied, policy.HeaderDenied, policy.QueryDenied, policy.GitDenied,
		policy.BodyDenied, policy.MCPDenied, policy.ModelDenied, policy.GraphQLDenied, policy.BodyTooLarge, policy.AddressDenied, policy.UpgradeDenied,
		policy.NoServerName, policy.NotTLS, policy.ECHRefused, policy.UDPDenied, policy.DNSTypeDenied, policy.Canary,
		policy.AskPending, policy.AskTimeout, policy.AskRejected, policy.ByteBudget:
	default:
		return ""
	}
	if d.Layer == policy.Organisation {
		return cmp.Or(m.Organisation, m.User)
	}
	return cmp.Or(m.User, m.Organisation)
}

var networkReasons = map[policy.Class]string{
	policy.NetworkDNS:         "the name could not be resolved",
	policy.NetworkRefused:     "the destination refused the connection",
	policy.NetworkUnreachable: "the destination cannot be reached",
	policy.NetworkTimeout:     "the destination did not answer in time",
	policy.NetworkTLS:         "TLS with the destination failed",
	policy.NetworkReset:       "the destination broke the connection off before it had answered",

	policy.UpstreamRefused: "the upstream proxy refused it",

	policy.MalformedResponse: "the destination answered what is no response of HTTP",

	policy.ResponseRefused:       "the response is compressed or a part of one, and cannot be searched for the credentials of this host",
	policy.CredentialRefused:     "the request has a credential that may not pass",
	policy.CredentialUnavailable: "the credential that the rule adds cannot be had now",
	policy.CertificateRefused:    "the program does not trust the authority of egressd",
}

func (f *Flow) networkRefusal(class policy.Class) *Refusal {
	return f.refusal(policy.Decision{Class: class, Rule: f.decision.Rule, Layer: f.decision.Layer, Reason: networkReasons[class], Policy: f.decision.Policy})
}

// Deny records that r is refused for a reason that the way in knows, whatever
// the policy says, and returns the refusal to render.
func (g *Gate) Deny(peer sandbox.Peer, r policy.Request, class policy.Class, why string) *Refusal {
	f := g.newFlow(peer, r)
	if who, err := g.accounts.identify(peer); err == nil {
		f.request.Sandbox = who
	}
	return f.refuse(policy.Decision{Class: class, Rule: "baseline", Layer: policy.Builtin, Reason: why})
}

// Refuse records what could not even be put to the policy and returns the
// refusal to render. raw is what was sent, as far as it was read: its first
// 256 bytes are recorded.
func (g *Gate) Refuse(peer sandbox.Peer, via policy.Via, raw []byte, class policy.Class, why string) *Refusal {
	f := g.newFlow(peer, policy.Request{Via: via})
	who, err := g.accounts.identify(peer)
	if err == nil {
		f.request.Sandbox = who
	}
	f.noteDenial()
	r := recordOf{kind: record.KindRefused, raw: raw}
	if c := g.canaries.Load(); c != nil {
		if found, ok := c.Find(string(raw)); ok {
			r.canary = &sighting{found, "what cannot be read"}
		}
	}
	d := policy.Decision{Class: class, Rule: "parser", Layer: policy.Builtin, Reason: why, Policy: g.policy.Load().Digest()}
	f.decision = &d
	if refusal := f.recordRefusal(r); refusal != nil {
		return refusal
	}
	return f.refusal(d)
}

// RefuseContainer records that a container was refused by one of its settings, before egressd served any of it. who names the
// sandbox that the container would have been, and note the command that looked at the container.
func (g *Gate) RefuseContainer(who policy.Sandbox, c *sandbox.RefusedContainer, note string) *Refusal {
	who.Container = c.Container()
	f := g.newFlow(sandbox.Peer{}, policy.Request{Via: policy.ViaEnter, Sandbox: who})
	f.noteDenial()
	d := policy.Decision{Class: policy.ContainerRefused, Rule: c.Setting, Layer: policy.Builtin, Reason: c.Reason, Policy: g.policy.Load().Digest()}
	f.decision = &d
	if refusal := f.recordRefusal(recordOf{kind: record.KindRefused, note: note}); refusal != nil {
		return refusal
	}
	return f.refusal(d)
}

// RefuseUnseen records that n connections or messages of a peer were refused without a look at them,
// all in one record; where n is 0 it is not known how many. An error says that it could
// not be recorded.
func (g *Gate) RefuseUnseen(peer sandbox.Peer, via policy.Via, class policy.Class, n int64, why string) error {
	f := g.newFlow(peer, policy.Request{Via: via})
	if who, err := g.accounts.identify(peer); err == nil {
		f.request.Sandbox = who
	}
	d := policy.Decision{Class: class, Rule: "baseline", Layer: policy.Builtin, Reason: why, Policy: g.policy.Load().Digest()}
	f.decision = &d
	r := recordOf{kind: record.KindRefused}
	e := encoder{Encoder: record.Encoder{Line: make([]byte, 0, 512)}, common: true}
	e.flow(f, r)
	g.canaries.mask(e.Line)
	for range max(1, n) {
		f.gate.Records.count(f, r)
	}
	_, err := g.config.Log.Append(summed(e.Line, e.idAt, f.id, n, nil))
	return err
}
