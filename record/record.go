// Package record is the audit record: its type, its encoding, and the test that docs/record.schema.json has
// the same members. Packages that read logs import this package and no gate. It imports nothing of
// egressd and builds on every system.
//
// Decode decodes one line. A [Decoder] decodes many, in memory that it uses again:
//
//	r, err := record.Decode(line)
package record

import "time"

// A Record is one line of the audit log. Package audit stamps v, seq and time, and package egress writes
// the other members. Members may be added, and never change name or type. Absent parts are left out.
//
// Fields stand in the order of the members of a line.
type Record struct {
	V     int       `json:"v"`
	Seq   int64     `json:"seq"`
	Time  time.Time `json:"time"`
	Kind  Kind      `json:"kind"`
	Flow  string    `json:"flow,omitempty"`
	Count int64     `json:"count,omitempty"` // of denials that it stands for; absent for one. See [Record.Times]

	Names *Names `json:"names,omitempty"`

	// Shared says that denials of other requests, which were summed beyond the budget of their sandbox, were answered
	// with the ID of this one.
	Shared bool `json:"shared,omitempty"`

	Sandbox string `json:"sandbox,omitempty"`

	Container *Container `json:"container,omitempty"`

	Via      string       `json:"via,omitempty"`
	Src      string       `json:"src,omitempty"`
	Dst      *Destination `json:"dst,omitempty"`
	TLS      *TLS         `json:"tls,omitempty"`
	HTTP     *HTTP        `json:"http,omitempty"`
	Body     *RequestBody `json:"body,omitempty"`
	Git      *Git         `json:"git,omitempty"`
	DNS      *DNS         `json:"dns,omitempty"`
	Process  *Process     `json:"process,omitempty"`
	Decision *Decision    `json:"decision,omitempty"`
	Shadow   *Shadow      `json:"shadow,omitempty"`
	Signal   *Signal      `json:"signal,omitempty"`
	Log      *LogState    `json:"log,omitempty"`
	Bytes    *Bytes       `json:"bytes,omitempty"`
	Duration int64        `json:"duration_ms,omitempty"`
	Outcome  Outcome      `json:"outcome,omitempty"`

	// Credential, in a record of kind close, is the kind of the credential that egressd put into the request: a name of its
	// table, "inject", or the name in the policy file. It is "foreign" for one that the sandbox sent and that the policy lets.
	Credential string `json:"credential,omitempty"`

	Raw  string `json:"raw,omitempty"`  // the first 256 bytes of a malformed request, escaped
	Note string `json:"note,omitempty"` // for a person: an event in egressd or the reason for an outcome, with a remedy
}

// Times returns the number of decisions that r stands for. A record of two or more sums denials like the
// one with the same flow. It has no source port, process ID or arguments. Names is set if the denials were
// of several names.
func (r *Record) Times() int64 { return max(1, r.Count) }

// A Kind is the kind of event that a record is about.
type Kind string

const (
	KindOpen     Kind = "open"    // a tunnel was decided
	KindRequest  Kind = "request" // an HTTP request, in clear or inside an inspected tunnel, was decided
	KindClose    Kind = "close"   // a flow ended, or was refused after it was opened
	KindDNS      Kind = "dns"
	KindRefused  Kind = "refused" // a request was refused before the policy could decide it, or would have carried a canary out
	KindPolicy   Kind = "policy"  // load, reload, reject
	KindStart    Kind = "start"
	KindStop     Kind = "stop"
	KindRecovery Kind = "recovery"
	KindSignal   Kind = "signal" // a canary was seen; the decision has a record of its own
	KindAdmin    Kind = "admin"  // a request at the admin listener, also one that was turned away

	KindHeartbeat Kind = "heartbeat" // once a minute: the state of the log, and the policy in force
)

// Names are the first and the last name of denials that were summed beyond the budget of their sandbox, each
// with its port. The host or the DNS name of the record is then "*." and the registered domain, or "*" for
// addresses and for several domains.
type Names struct {
	First   string `json:"first"`
	Last    string `json:"last"`
	Domains int64  `json:"domains,omitempty"` // registered domains, or addresses: exact up to 4095, at least 4096 beyond
}

type Destination struct {
	Host  string   `json:"host"`
	Port  uint16   `json:"port"`
	Addrs []string `json:"addrs,omitempty"` // judged addresses
	From  string   `json:"from,omitempty"`  // "hosts" if addrs come from the hosts file of egressd's machine; else from a name server
	Addr  string   `json:"addr,omitempty"`  // dialled address
	Asked string   `json:"asked,omitempty"` // the address that the client asked for, if it is none of the addresses of the host that it named
	Class string   `json:"class,omitempty"` // special-purpose address space of a refused address
}

type TLS struct {
	SNI       string   `json:"sni,omitempty"`
	ALPN      []string `json:"alpn,omitempty"`
	ECH       bool     `json:"ech,omitempty"`
	JA4       string   `json:"ja4,omitempty"`
	Inspected bool     `json:"inspected,omitempty"`
}

type HTTP struct {
	Method  string `json:"method"`
	Path    string `json:"path"`
	PathCut bool   `json:"path_cut,omitempty"` // Path is only the beginning

	QueryBytes int64 `json:"query_bytes,omitempty"` // length of the query without "?"; no record has its text

	Authority string `json:"authority,omitempty"` // set if the request names another server than the destination
	Status    int    `json:"status,omitempty"`
	Own       bool   `json:"own,omitempty"` // egressd sent it itself, to decide another request
}

// A RequestBody is what was read of the body of a request before the request was decided.
type RequestBody struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256,omitempty"` // in hexadecimal digits, of a body that was read as a whole

	Says []string `json:"says,omitempty"` // what rules found that it asks for, such as "mcp tools/call search"
}

// A Git is what a request asked of a git server.
type Git struct {
	Repo string `json:"repo"` // in lower case and without ".git"
	Op   string `json:"op"`   // "fetch", "push", "lfs-download", "lfs-upload", or "lfs" for a batch that was not read

	// Refs are the commands of a push, each the old object ID, the new one and the ref, as a pre-receive hook gets them. They are
	// absent if the commands could not be read.
	Refs []string `json:"refs,omitempty"`
}

type DNS struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// A Container is the container that the request came from, as the engine describes it.
type Container struct {
	ID      string `json:"id"` // its first 12 digits
	Name    string `json:"name,omitempty"`
	Image   string `json:"image,omitempty"`
	Project string `json:"project,omitempty"` // Project and Service are those of Compose
	Service string `json:"service,omitempty"`
}

type Process struct {
	PID  int      `json:"pid"`
	Exe  string   `json:"exe"`
	Argv []string `json:"argv"`
}

type Decision struct {
	Action    string   `json:"action"` // allow, deny, ask
	Rule      string   `json:"rule,omitempty"`
	Layer     string   `json:"layer,omitempty"`
	Reason    string   `json:"reason,omitempty"`
	Class     string   `json:"class,omitempty"`
	AllowedIf []string `json:"allowed_if,omitempty"`
	Log       bool     `json:"log,omitempty"`      // the rule marks its records
	Policy    string   `json:"policy,omitempty"`   // digest of the texts of the policy
	Rules     string   `json:"rules,omitempty"`    // ID of its rules, the same wherever the same rules hold
	Revision  string   `json:"revision,omitempty"` // of its bundles, with a space between two
	Question  []string `json:"question,omitempty"` // IDs of the approved questions to a person, or of the one without an approval
}

// A Shadow is the decision of the shadow policy, if it differs from the decision in force. In a record of
// kind policy it has only the digest of the shadow policy.
type Shadow struct {
	Action  string `json:"action,omitempty"`
	Rule    string `json:"rule,omitempty"`
	Layer   string `json:"layer,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Class   string `json:"class,omitempty"`
	Inspect bool   `json:"inspect,omitempty"` // the shadow policy would inspect the tunnel
	Policy  string `json:"policy"`
}

// A Signal is an observation beside a decision.
type Signal struct {
	What     string `json:"what"` // "canary"
	Name     string `json:"name"` // name of the canary
	Where    string `json:"where"`
	Encoding string `json:"encoding"`
}

// A LogState is the state of a signed log, in a record of kind heartbeat.
type LogState struct {
	Origin string `json:"origin"` // the name that its checkpoints are signed under
	Size   int64  `json:"size"`   // number of records, some of which may stand behind it
	Root   string `json:"root"`   // of the tree of these records (RFC 6962), in base64

	// Follows is the origin of an earlier log in the same folder. Had is the last known number of its records. Both are absent
	// without an earlier log.
	Follows string `json:"follows,omitempty"`
	Had     int64  `json:"had,omitempty"`
}

// Bytes counts payload bytes: up to the upstream, down to the client. For an HTTP/1 request they include
// heads and bodies, for an HTTP/2 request the head of the request and both bodies.
type Bytes struct {
	Up   int64 `json:"up"`
	Down int64 `json:"down"`
}
