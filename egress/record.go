package egress

import "time"

// A Record is one line of the audit log as a reader sees it. The log itself
// stamps v, seq and time; this package writes the rest. Names and shapes may
// be added to, never changed. Absent parts are left out.
type Record struct {
	V     int       `json:"v"`
	Seq   int64     `json:"seq"`
	Time  time.Time `json:"time"`
	Kind  Kind      `json:"kind"`
	Flow  string    `json:"flow,omitempty"`
	Count int64     `json:"count,omitempty"` // of denials that it stands for; absent for one. See [Record.Times]

	Names *RecordNames `json:"names,omitempty"`

	Sandbox string `json:"sandbox,omitempty"`

	Container *RecordContainer `json:"container,omitempty"`

	Via      string          `json:"via,omitempty"`
	Src      string          `json:"src,omitempty"`
	Dst      *RecordDst      `json:"dst,omitempty"`
	TLS      *RecordTLS      `json:"tls,omitempty"`
	HTTP     *RecordHTTP     `json:"http,omitempty"`
	DNS      *RecordDNS      `json:"dns,omitempty"`
	Process  *RecordProcess  `json:"process,omitempty"`
	Decision *RecordDecision `json:"decision,omitempty"`
	Shadow   *RecordShadow   `json:"shadow,omitempty"`
	Signal   *RecordSignal   `json:"signal,omitempty"`
	Bytes    *RecordBytes    `json:"bytes,omitempty"`
	Duration int64           `json:"duration_ms,omitempty"`
	Outcome  string          `json:"outcome,omitempty"`
	Raw      string          `json:"raw,omitempty"`  // first 256 bytes of what could not be parsed, escaped
	Note     string          `json:"note,omitempty"` // for a person: what happened to egressd, or why a flow ended as it did, and what to do
}

// Times is how many decisions the record stands for. Two and more are denials like the one with the
// same flow. Their source ports, and the numbers and arguments
// of their processes, are not recorded. If Names is set, they were of several names.
func (r *Record) Times() int64 { return max(1, r.Count) }

// A Kind says what a record is about.
type Kind string

const (
	KindOpen     Kind = "open"    // a tunnel was decided
	KindRequest  Kind = "request" // an HTTP request, in clear or inside an inspected tunnel, was decided
	KindClose    Kind = "close"   // a flow ended, or was refused after it was opened
	KindDNS      Kind = "dns"
	KindRefused  Kind = "refused" // could not even be put to the policy
	KindPolicy   Kind = "policy"  // load, reload, reject
	KindStart    Kind = "start"
	KindStop     Kind = "stop"
	KindRecovery Kind = "recovery"
	KindSignal   Kind = "signal" // something that nobody does by accident; beside the record of the decision
	KindAdmin    Kind = "admin"  // what an operator asked egressd for, or somebody who is none
)

// RecordNames are the first and last name of denials summed beyond the budget of their sandbox, each
// with its port. The record's host, or the name of its question, is
// "*." and the registered domain. It is "*" for addresses and for several domains.
type RecordNames struct {
	First string `json:"first"`
	Last  string `json:"last"`
}

type RecordDst struct {
	Host  string   `json:"host"`
	Port  uint16   `json:"port"`
	Addrs []string `json:"addrs,omitempty"` // judged addresses
	Addr  string   `json:"addr,omitempty"`  // the one that was dialled
	Class string   `json:"class,omitempty"` // special-purpose space it was refused for
}

type RecordTLS struct {
	SNI       string   `json:"sni,omitempty"`
	ALPN      []string `json:"alpn,omitempty"`
	ECH       bool     `json:"ech,omitempty"`
	JA4       string   `json:"ja4,omitempty"`
	Inspected bool     `json:"inspected,omitempty"`
}

type RecordHTTP struct {
	Method    string `json:"method"`
	Path      string `json:"path"`
	Authority string `json:"authority,omitempty"` // the server that the request names, where that is not the destination
	Status    int    `json:"status,omitempty"`
}

type RecordDNS struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// RecordContainer is the container that it came from, as the engine says.
type RecordContainer struct {
	ID      string `json:"id"` // the first 12 digits
	Name    string `json:"name,omitempty"`
	Image   string `json:"image,omitempty"`
	Project string `json:"project,omitempty"` // of Compose, as is Service
	Service string `json:"service,omitempty"`
}

type RecordProcess struct {
	PID  int      `json:"pid"`
	Exe  string   `json:"exe"`
	Argv []string `json:"argv"`
}

type RecordDecision struct {
	Action    string   `json:"action"` // allow, deny, ask
	Rule      string   `json:"rule,omitempty"`
	Layer     string   `json:"layer,omitempty"`
	Reason    string   `json:"reason,omitempty"`
	Class     string   `json:"class,omitempty"`
	AllowedIf []string `json:"allowed_if,omitempty"`
	Log       bool     `json:"log,omitempty"` // a rule asked for the record to be marked
	Policy    string   `json:"policy,omitempty"`
	Question  []string `json:"question,omitempty"` // to a person: those that were answered with yes, or the one that is not
}

// RecordShadow is what the policy in shadow would have decided, where that differs
// from the decision. In a record of kind policy it says which one is asked beside
// the one in force.
type RecordShadow struct {
	Action  string `json:"action,omitempty"`
	Rule    string `json:"rule,omitempty"`
	Layer   string `json:"layer,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Class   string `json:"class,omitempty"`
	Inspect bool   `json:"inspect,omitempty"` // it would look at the requests in the tunnel
	Policy  string `json:"policy"`
}

// RecordSignal is what was noticed beside a decision.
type RecordSignal struct {
	What     string `json:"what"` // "canary"
	Name     string `json:"name"` // of the canary
	Where    string `json:"where"`
	Encoding string `json:"encoding"`
}

// RecordBytes counts payload bytes: up to the upstream, down to the client. Of
// a request in HTTP/1 these are heads and bodies, of one in HTTP/2 its bodies
// alone.
type RecordBytes struct {
	Up   int64 `json:"up"`
	Down int64 `json:"down"`
}
