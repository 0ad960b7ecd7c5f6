package policy

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Via is the way in that a request took.
type Via string

const (
	ViaEnter       Via = "enter" // of no request, but of who hands a network in
	ViaConnect     Via = "connect"
	ViaHTTP        Via = "http"
	ViaSOCKS5      Via = "socks5"
	ViaTransparent Via = "transparent"
	ViaDNS         Via = "dns"
	ViaUnknown     Via = "unknown" // refused before its protocol was known
)

// A Protocol is what the first bytes of a tunnel showed themselves to be.
type Protocol uint8

const (
	ProtocolUnseen Protocol = iota // no byte has been seen yet
	ProtocolTLS
	ProtocolHTTP
	ProtocolOpaque // neither
)

// A ClientHello is what a client claimed in the first flight of TLS.
type ClientHello struct {
	ServerName string // canonical, or empty where none was sent
	NoName     string // what was sent instead of a canonical name, for the record; never equal to any host
	Malformed  bool   // the hello could not be read to its end: NoName is all that is known of it
	ALPN       []string
	ECH        bool
	JA4        string

	// Inspected is for the record: the client's TLS ends at egressd.
	Inspected bool
}

// An HTTPRequest is the head of a request that was seen in clear.
type HTTPRequest struct {
	Method   string
	Path     string // canonical: begins with "/", or is "*"
	Query    string // without "?"; policy may read it, records never hold it
	Header   map[string][]string
	BodySize int64 // bytes announced, -1 where unknown

	// Authority is the server that the request itself names, in Host or
	// :authority: canonical host:port, or any other text that is not empty
	// where that was no host. Empty: the way in has settled it.
	Authority string

	// Upgrade says that the request asks to change the protocol of its connection (RFC 9110 section 7.8).
	Upgrade bool

	// OtherProtocol says that it does not ask for a WebSocket as RFC 6455 section 4.1 has it, whose
	// answer proves that the server understood.
	OtherProtocol bool

	// ReplacesMethod says that a field of the client's asks the server to take another method for Method. The field is not
	// in Header and does not go up.
	ReplacesMethod bool

	// Body is what was read of the body so far; nil for nothing. Rules that read it say so by [NeedsBody].
	Body *Body

	// Nodes are what the server said of node ids in the body of a GraphQL request. The decision asks for it by [NeedsNodes].
	Nodes map[string]Node

	// LFS is the action of an answer of Git LFS that the request carries out, or nil.
	LFS *LFSAction

	// Own says that egressd itself sends the request, for a decision about another one: it asks the server what node ids are.
	Own bool

	// assumed are the answers of requirements, by their words, for a request that stands for
	// many; nil for one that was sent.
	assumed map[string]fit
}

// A Body is the part of a request's body that egressd has read before the request is decided. Nobody changes it: reading on
// makes another Body.
type Body struct {
	Bytes []byte // as they go to the upstream, but for the framing of HTTP
	Ended bool   // they are the whole body

	// Content is what a whole body says: Bytes without their content coding. It is nil if Problem is not empty.
	Content []byte
	Problem string // why nobody can tell what the body says; constant text

	mu      sync.Mutex
	answers map[*requirement]bodyAnswer // so that a long body is read once for each requirement
	says    []string
	nodes   []string // node ids that rules have found
}

// Unread reports whether there is more of the body than was read.
func (h *HTTPRequest) Unread() bool {
	if h.Body == nil {
		return h.BodySize != 0
	}
	return !h.Body.Ended
}

// lacks reports whether a verdict needs facts of the request that nobody has read yet.
func (h *HTTPRequest) lacks(n Needs) bool {
	return n.ReadsBody() && h.Unread() || n&NeedsNodes != 0 && len(h.UnknownNodes()) > 0
}

// A DNSQuery is what a DNS query asks for.
type DNSQuery struct {
	Name string
	Type string

	method string // the one that [Policy.Decide] tries; empty: whichever
}

// A Process is the program that opened a connection: advisory.
type Process struct {
	PID  int
	Exe  string
	Argv []string
}

// A Request is what a sandbox wants to do, as far as it is known. The parts
// that are not known yet are nil or empty; the gate fills them in and decides
// again, and every later decision can only be stricter.
type Request struct {
	Sandbox     Sandbox
	Via         Via
	Destination Destination
	Protocol    Protocol
	TLS         *ClientHello
	HTTP        *HTTPRequest
	DNS         *DNSQuery
	Process     *Process
	Usage       *Usage // nil where nobody counted: a policy that reads it then fails
	Time        time.Time

	// Approved are the rules that ask about the request and that a person has answered
	// with yes. They count as rules that allow, and nothing else does.
	Approved []Approval
}

// An Approval is the answer of a person to a rule that asks.
type Approval struct {
	Layer    Layer
	Source   string // as in [Decision]
	Rule     string
	Question string // its id, for [Decision].Question
}

// ApprovedBy returns the id of the question by which what a rule of a source asks is approved, or "".
func (r *Request) ApprovedBy(layer Layer, source, rule string) (question string) {
	for i := range r.Approved {
		if a := &r.Approved[i]; a.Layer == layer && a.Source == source && a.Rule == rule {
			return a.Question
		}
	}
	return ""
}

// unapproved is r where nobody has answered anything.
func (r *Request) unapproved() *Request {
	if r.Approved == nil {
		return r
	}
	c := *r
	c.Approved = nil
	return &c
}

// A Stage says how much of a request is known.
type Stage string

const (
	StageName    Stage = "name"
	StageAddress Stage = "address"
	StageTLS     Stage = "tls"
	StageHTTP    Stage = "http"
	StageDNS     Stage = "dns"
)

// Stage reports the latest stage whose part of r is filled in.
func (r *Request) Stage() Stage {
	switch {
	case r.DNS != nil:
		return StageDNS
	case r.HTTP != nil:
		return StageHTTP
	case r.TLS != nil:
		return StageTLS
	case len(r.Destination.Addrs) > 0:
		return StageAddress
	default:
		return StageName
	}
}

// triedMethod is the method that a question for a name is tried with, or "".
func (r *Request) triedMethod() string {
	if r.DNS == nil {
		return ""
	}
	return r.DNS.method
}

// inClear reports whether the request was sent outside TLS, as far as is known.
func (r *Request) inClear() bool {
	return r.Via == ViaHTTP || r.Protocol == ProtocolHTTP && r.TLS == nil
}

// Usage is what one sandbox has used until a request of it is decided. It counts
// what the gate has let through before; the flow that is decided is not in it.
type Usage struct {
	FlowsOpen      int64 // tunnels and requests that are open now
	FlowsMinute    int64 // tunnels and requests that began in the last minute
	RequestsMinute int64 // the HTTP requests among them
	DeniedMinute   int64 // tunnels and requests that were refused in the last minute

	// BytesUp and BytesDown are payload since egressd started, to upstreams and
	// back, as the records of flows count it; what open flows have carried so far
	// is part of it.
	BytesUp, BytesDown int64
}

// clone returns a copy that stays as it is, whatever becomes of the parts of r
// that their owner may write.
func (r *Request) clone() *Request {
	c := *r
	if r.HTTP != nil {
		head := *r.HTTP
		head.Header = maps.Clone(head.Header)
		for name, values := range head.Header {
			head.Header[name] = slices.Clone(values)
		}
		c.HTTP = &head
	}
	return &c
}

// whereTo returns what was asked for: the name of a question, or host:port.
func whereTo(r *Request) string {
	if r.DNS != nil {
		return r.Destination.Host
	}
	return r.Destination.String()
}

// whatTo names a destination, or that it is only this request to it.
func whatTo(r *Request) string {
	if r.HTTP != nil {
		return "this request to " + whereTo(r)
	}
	return whereTo(r)
}
