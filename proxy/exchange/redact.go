package exchange

import (
	"context"
	"runtime"
	"slices"
	"strings"

	"github.com/egressd/egressd/credentials"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
)

// Secrets adds credentials to requests, and strikes them out of responses. Its functions are safe for concurrent use
// and do not wait. A nil function does nothing.
type Secrets struct {
	// Apply changes the head of a request for dst, by the policy with that digest, or refuses it.
	Apply func(digest string, dst policy.Destination, r *credentials.Request) credentials.Answer

	// Redaction returns what strikes the credentials of a host out of its responses, whatever request they answer, or nil
	// where it has none.
	Redaction func(dst policy.Destination) *secret.Redaction
}

// A head is what a credential changes of a request, and what is struck out of the response, or nil.
type head struct {
	target    http1.Target
	fields    http1.Fields
	redaction *secret.Redaction
}

// add has the credentials of a request's host change its head, and has the response come so that it can be searched.
// The error is a [*egress.Refusal].
func (c *Secrets) add(flow *egress.Flow, dst policy.Destination, clear bool, h *head, end *egress.End) error {
	if c.Redaction != nil {
		h.redaction = c.Redaction(dst)
	}
	rule, digest := flow.Credential()
	switch {
	case c.Apply != nil:
		a := c.Apply(digest, dst, &credentials.Request{
			Sandbox: flow.Sandbox(), Rule: rule, Host: dst.Host, Clear: clear, Target: h.target, Fields: h.fields,
		})
		end.Credential, end.Note = a.Kind, a.Note
		if a.Refused != "" {
			return refusedCredential(flow, &a)
		}
		h.target, h.fields = a.Target, a.Fields
		if a.Added != nil { // which may have been read again in between
			h.redaction = h.redaction.With(a.Added)
		}
	case rule != "":
		return flow.Failed(policy.CredentialUnavailable, "")
	}
	if h.redaction != nil {
		h.fields = searchable(h.fields)
	}
	return nil
}

func refusedCredential(flow *egress.Flow, a *credentials.Answer) *egress.Refusal {
	class := policy.CredentialRefused
	if a.Unavailable {
		class = policy.CredentialUnavailable
	}
	r := flow.Failed(class, a.Refused)
	r.Note = a.Refused
	return r
}

// searchable returns the fields of a request without those that would have the
// response come back in a form that cannot be searched for a credential: compressed, or in
// pieces that the sandbox has chosen. Request-Range is an old name of Range that servers
// still know, X-Ms-Range another one, and A-IM (RFC 3229) asks for ranges and differences.
func searchable(f http1.Fields) http1.Fields {
	f = f.Delete("Range", "If-Range", "Request-Range", "X-Ms-Range", "A-IM", "Accept-Encoding", "Sec-WebSocket-Extensions")
	return append(f, http1.Field{Name: "Accept-Encoding", Value: "identity"})
}

// inOnePiece reports whether a response with these fields is neither coded nor
// a part of something (RFC 9110 §15.3.7, RFC 3229 §10.4.1): what the sandbox
// may have a server cut, it may have it cut inside the credential.
func inOnePiece(status int, f http1.Fields) bool {
	part := slices.ContainsFunc(f.Values("Content-Type"), func(v string) bool {
		return strings.Contains(strings.ToLower(v), "multipart/byteranges")
	})
	return status != 206 && status != 226 && !f.Has("Content-Range") && !part && plainCoding(f.Values("Content-Encoding"))
}

func plainCoding(values []string) bool {
	return !slices.ContainsFunc(values, func(v string) bool { return !strings.EqualFold(strings.TrimSpace(v), "identity") })
}

// Passing returns the fields of a response, or of its trailer, that pass: without those by which egressd speaks for itself
// and without the credentials of the host. It reuses f.
func (x *Exchange) Passing(f http1.Fields) http1.Fields {
	var s *BodyFilter
	if x.redaction != nil {
		s = &BodyFilter{flow: x.Flow, redaction: x.redaction, end: &x.end}
		size := 0
		for _, field := range f {
			size += len(field.Name) + len(field.Value)
		}
		defer redactTurn(s.flow, size)()
	}
	return s.fields(f)
}

// responseFilter returns what strikes the host's credentials out of the response, or nil.
func (x *Exchange) responseFilter() *BodyFilter {
	if x.redaction == nil {
		return nil
	}
	return newBodyFilter(x.Flow, x.redaction, &x.end)
}

// A BodyFilter redacts the credentials of a host from a response, or scans a request for canaries. It notes in
// the flow's end that a credential was redacted. A nil BodyFilter passes everything.
type BodyFilter struct {
	flow      *egress.Flow      // whose turns are used
	redaction *secret.Redaction // of the fields; nil for a request
	redactor  *secret.Redactor  // nil where it only strikes fields
	scanner   Scanner           // looks at what goes up; nil where there is nothing to look for
	forget    func()            // ends a wait for the turns of scanner; may be nil
	end       *egress.End
}

func newBodyFilter(flow *egress.Flow, n *secret.Redaction, end *egress.End) *BodyFilter {
	return &BodyFilter{flow: flow, redaction: n, redactor: n.NewRedactor(), end: end}
}

// requestFilter returns what searches the body of the request for canaries, or nil where there are none. wanted ends the wait
// for a turn.
func (x *Exchange) requestFilter(wanted context.Context) *BodyFilter {
	wanted, forget := context.WithCancel(wanted)
	scanner := newBodyScanner(x.Flow, x.Fields.Values("Content-Encoding"), x.bodyMemory, x.Client.Forwarder.ScanTurn(wanted, x.Flow))
	if scanner == nil {
		forget()
		return nil
	}
	return &BodyFilter{flow: x.Flow, scanner: scanner, forget: forget}
}

// Redact returns what may be passed on now that b has come.
func (s *BodyFilter) Redact(b []byte) []byte {
	if s == nil || s.redactor == nil {
		return b
	}
	defer redactTurn(s.flow, len(b))()
	out := s.redactor.Redact(b)
	if s.redactor.Hits() > 0 {
		s.note()
	}
	return out
}

// RedactLast returns part and what was held back.
func (s *BodyFilter) RedactLast(part []byte) []byte {
	if s == nil || s.redactor == nil {
		return part
	}
	return append(slices.Clone(part), s.redactor.Flush()...)
}

// fields returns the response fields that pass, struck. It reuses f.
func (s *BodyFilter) fields(f http1.Fields) http1.Fields {
	out := f[:0]
	for _, field := range f {
		if reserved(field.Name) || s.inName(field.Name) {
			continue
		}
		if s != nil {
			text, hit := s.redaction.RedactString(field.Value)
			if field.Value = text; hit {
				s.note()
			}
		}
		out = append(out, field)
	}
	return out
}

// inName reports whether a field's name holds a credential. There are no names
// that it could be struck out of.
func (s *BodyFilter) inName(name string) bool {
	hit := s != nil && s.redaction.InName(name)
	if hit {
		s.note()
	}
	return hit
}

func (s *BodyFilter) note() {
	s.end.Note = "the response held a credential of this host; it was struck out"
}

// redacting limits how many responses are redacted at once, 35 to 600 MB a second. It leaves one processor free on a
// machine with several. Sandboxes take turns, part by part.
var redacting = fair.NewTurns(max(1, runtime.GOMAXPROCS(0)-1))

// A shorter part of a response is redacted at once.
const longPart = 4 << 10

// redactTurn waits for the turn of the sandbox of a flow in which so many bytes are redacted. The caller calls end afterwards. A turn
// only computes, and so no wait needs a limit.
func redactTurn(flow *egress.Flow, size int) (end func()) {
	if size < longPart || redacting.Take(context.Background(), flow.Holder(), flow.Sandbox()) != nil {
		return func() {}
	}
	return redacting.Give
}
