package exchange

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/egressd/egressd/credentials"
	"github.com/egressd/egressd/egress"
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
	// where it has none. whole: a response has to come whole and uncompressed, since requests carry one of them.
	Redaction func(dst policy.Destination) (r *secret.Redaction, whole bool)
}

// A head is what a credential changes of a request, and what is struck out of the response, or nil.
type head struct {
	method    string
	target    http1.Target
	fields    http1.Fields
	given     http1.Fields // that a server has told the client to send, see [credentials.Request]
	named     bool         // a server has told the client to send the request
	redaction *secret.Redaction
	whole     bool // the response has to come so that all of it can be searched

	wanted context.Context // ends when nobody waits for the request any more

	// body returns the whole body, as it is sent.
	body func() ([]byte, *policy.Decision)
}

// add has the credentials of a request's host change its head, and has the response come so that it can be searched.
// The error is a [*egress.Refusal]. c may be nil.
func (c *Secrets) add(flow *egress.Flow, dst policy.Destination, clear bool, h *head, end *egress.End) error {
	if c == nil {
		c = &Secrets{}
	}
	if c.Redaction != nil {
		h.redaction, h.whole = c.Redaction(dst)
	}
	rule, digest := flow.Credential()
	switch {
	case c.Apply != nil:
		r := credentials.Request{
			Sandbox: flow.Sandbox(), Rule: rule, Host: dst.Host, Clear: clear,
			Method: h.method, Authority: HostField(dst, 443), Target: h.target, Fields: h.fields, Given: h.given, Named: h.named,
		}
		for _, f := range flow.SetFields() {
			r.Set = append(r.Set, f.Name)
		}
		a := c.Apply(digest, dst, &r)
		if a.NeedsBody {
			body, refused := h.body()
			if refused != nil {
				return flow.Failed(refused.Class, refused.Reason)
			}
			r.Body = body
			a = c.Apply(digest, dst, &r)
		}
		if a.Fetch != nil {
			if err := a.Fetch(h.wanted, flow.Holder()); err != nil {
				refusal := flow.Failed(policy.CredentialUnavailable, err.Error())
				refusal.Note = refusal.Decision.Reason
				return refusal
			}
			if a = c.Apply(digest, dst, &r); a.Fetch != nil {
				return flow.Failed(policy.CredentialUnavailable, "")
			}
			a.Note = cmp.Or(a.Note, "egressd asked the token service of the registry for a token")
		}
		end.Credential, end.Note = a.Kind, cmp.Or(a.Note, end.Note)
		if a.Refused != "" {
			return refusedCredential(flow, &a)
		}
		h.target, h.fields = a.Target, a.Fields
		if a.Added != nil { // which may have been read again in between
			h.redaction, h.whole = h.redaction.With(a.Added), true
		}
	case rule != "":
		return flow.Failed(policy.CredentialUnavailable, "")
	}
	if h.whole {
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
// still know, X-Ms-Range another one, and A-IM (RFC 3229) asks for ranges and differences. Accept-Charset
// asks for letters that egressd does not read.
func searchable(f http1.Fields) http1.Fields {
	f = f.Delete("Range", "If-Range", "Request-Range", "X-Ms-Range", "A-IM", "Accept-Encoding", "Accept-Charset", "Sec-WebSocket-Extensions")
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
