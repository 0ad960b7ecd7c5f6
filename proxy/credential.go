package proxy

import (
	"slices"
	"strings"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
)

// credential returns what the deciding rule adds to a request of the tunnel,
// or nil where it adds nothing. The error is a [*egress.Refusal].
func (i *inside) credential(flow *egress.Flow) (*secret.Secret, error) {
	rule, digest := flow.Credential()
	if rule == "" {
		return nil, nil
	}
	if i.with.Credential != nil {
		if s := i.with.Credential(rule, digest, i.dst); s != nil {
			return s, nil
		}
	}
	return nil, flow.Failed(policy.CredentialUnavailable, "")
}

// addCredential puts the credential of the deciding rule, where it has one, in
// place of what the sandbox sent. In clear nothing is added.
func (v *webVisit) addCredential(x *exchange) (err error) {
	if v.inside == nil {
		return nil
	}
	if x.secret, err = v.inside.credential(x.flow); x.secret == nil {
		return err
	}
	x.fields = withCredential(x.fields, x.secret)
	return nil
}

// withCredential returns the fields of a request with s in them, and without
// what would have the response come back in a form that cannot be searched
// for it: compressed, or in pieces that the sandbox has chosen. Request-Range
// is an old name of Range that servers still know, X-Ms-Range another one, and
// A-IM (RFC 3229) asks for ranges and differences.
func withCredential(f http1.Fields, s *secret.Secret) http1.Fields {
	f = f.Delete("Range", "If-Range", "Request-Range", "X-Ms-Range", "A-IM", "Accept-Encoding", "Sec-WebSocket-Extensions")
	given := make([]secret.Field, len(f))
	for i := range f {
		given[i] = secret.Field(f[i])
	}
	out := make(http1.Fields, 0, len(f)+2)
	for _, field := range s.Inject(given) {
		out = append(out, http1.Field(field))
	}
	return append(out, http1.Field{Name: "Accept-Encoding", Value: "identity"})
}

// searchable returns a refusal where a response could hold the credential in a
// form in which it would not be found.
func (x *exchange) searchable(f http1.Fields) error {
	if x.secret == nil || inOnePiece(x.end.Status, f.Values) {
		return nil
	}
	return x.flow.Failed(policy.ResponseRefused, "")
}

// inOnePiece reports whether a response with these fields is neither coded nor
// a part of something (RFC 9110 §15.3.7, RFC 3229 §10.4.1): what the sandbox
// may have a server cut, it may have it cut inside the credential.
func inOnePiece(status int, values func(name string) []string) bool {
	part := slices.ContainsFunc(values("Content-Type"), func(v string) bool {
		return strings.Contains(strings.ToLower(v), "multipart/byteranges")
	})
	return status != 206 && status != 226 && len(values("Content-Range")) == 0 && !part && plainCoding(values("Content-Encoding"))
}

func plainCoding(values []string) bool {
	return !slices.ContainsFunc(values, func(v string) bool { return !strings.EqualFold(strings.TrimSpace(v), "identity") })
}

// shown are the fields of a response that pass.
func (x *exchange) shown(f http1.Fields) http1.Fields {
	var s *striker
	if x.secret != nil {
		s = &striker{secret: x.secret, end: &x.end}
	}
	return s.fields(f)
}

// redactor returns what strikes the request's credential out of the response,
// or nil.
func (x *exchange) redactor() *striker {
	if x.secret == nil {
		return nil
	}
	return newStriker(x.secret, &x.end)
}

// A striker strikes a credential out of what a sandbox would read, and notes
// in the flow's end that it had to. A nil striker passes everything on.
type striker struct {
	secret    *secret.Secret
	body      *secret.Redactor // nil where it only strikes fields
	noTrailer bool             // no trailer field passes
	leaving   leaving          // looks at what goes up; nil where there is nothing to look for
	end       *egress.End
}

func newStriker(s *secret.Secret, end *egress.End) *striker {
	return &striker{secret: s, body: s.NewRedactor(), end: end}
}

// withoutTrailer is for the body of a request: fields that come behind it were not
// judged, and could name one again that was, or the one with the credential.
func (x *exchange) withoutTrailer(packed *lease, turns search) *striker {
	return &striker{secret: x.secret, noTrailer: true, end: &x.end, leaving: bodyLeaving(x.flow, x.fields.Values("Content-Encoding"), packed, turns)}
}

// part returns what may be passed on now that b has come.
func (s *striker) part(b []byte) []byte {
	if s == nil || s.body == nil {
		return b
	}
	out := s.body.Redact(b)
	if s.body.Hits() > 0 {
		s.note()
	}
	return out
}

// last returns part and what was held back.
func (s *striker) last(part []byte) []byte {
	if s == nil || s.body == nil {
		return part
	}
	return append(slices.Clone(part), s.body.Flush()...)
}

// trailer returns the trailer fields that pass, struck. It reuses f.
func (s *striker) trailer(f http1.Fields) http1.Fields {
	if s != nil && s.noTrailer {
		return nil
	}
	return s.fields(f)
}

// fields returns the response fields that pass, struck. It reuses f.
func (s *striker) fields(f http1.Fields) http1.Fields {
	out := f[:0]
	for _, field := range f {
		if reserved(field.Name) || s.named(field.Name) {
			continue
		}
		if s != nil {
			text, hit := s.secret.RedactString(field.Value)
			if field.Value = text; hit {
				s.note()
			}
		}
		out = append(out, field)
	}
	return out
}

// named reports whether a field's name holds the credential. There are no names
// that it could be struck out of.
func (s *striker) named(name string) bool {
	hit := s != nil && s.secret.InName(name)
	if hit {
		s.note()
	}
	return hit
}

func (s *striker) note() {
	s.end.Note = "the response held the credential that was added to the request; it was struck out"
}
