package credentials

import (
	"context"
	"encoding/base64"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/secret"
)

// Bounds of the text that the client may write beside a placeholder in Basic. Longer text would let the client
// choose where a server cuts a value that it repeats, and so which part of the secret shows. A server may take the password alone for
// the credential, so it is shorter than any token: "x-oauth-basic" or the like.
const (
	maxUser     = 64
	maxPassword = 16
)

// A Request is the head of a request that the policy lets pass.
type Request struct {
	Sandbox string
	Rule    string // that decided, if it adds a credential
	Host    string
	Clear   bool // over plain HTTP

	Method    string
	Authority string // the Host field as it is written
	Target    http1.Target
	Fields    http1.Fields
	Body      []byte // all of it, or nil if it was not read; empty, not nil, if there is none

	// Set names the fields that the policy has written.
	Set []string

	// Named: the rule is for requests that the answer to a batch of Git LFS has named, and this is one, by its method and whole URL. A
	// signature in the query is then that of the server, and egressd adds no credential beside it.
	Named bool

	// Given are fields that the server itself has told this client to send with this request. One of them is no foreign
	// credential.
	Given http1.Fields
}

// An Answer is what becomes of a request.
type Answer struct {
	Target http1.Target
	Fields http1.Fields

	Kind string // of the credential that the request carries, or ""
	Note string // for the record of its end

	// Refused says why the request may not pass. Unavailable says that the secret cannot be had now.
	Refused     string
	Unavailable bool

	// NeedsBody: the caller has to read the body, and to ask again.
	NeedsBody bool

	// Fetch, if it is not nil, gets what the credential needs, and may take seconds. The caller then asks again. Sandboxes take turns,
	// by holder.
	Fetch func(ctx context.Context, holder string) error

	Added *secret.Secret // in the request, or nil
}

// Apply puts the secret of the rule into a request, or refuses the request. It reads the fields of r, and changes
// none of them in place. It is safe for concurrent use and does not wait.
func (s *Set) Apply(r *Request) Answer {
	a := Answer{Target: r.Target, Fields: r.Fields}
	if s == nil {
		return a
	}
	if c := s.plain[r.Rule]; c != nil && !r.Clear {
		c.replace(&a)
		return a
	}
	c := s.at(r.Host)
	switch {
	case c != nil && r.Clear:
		a.Refused = "the credential " + c.Name + " never goes over plain http; ask for https://" + r.Host
	case c != nil && r.Named && c.isHandedOut(r):
		a.Note, a.Kind = "the request is signed by the server of large files that has named it", "foreign"
	case c != nil && c.Docker != nil:
		c.applyDocker(&s.key, r, &a)
	case c != nil && c.AWS != nil:
		c.applyAWS(&s.key, r, &a)
	case c != nil:
		c.apply(&s.key, r, &a)
	}
	if a.Refused == "" && a.Note == "" && s.strays(r.Sandbox, &a) {
		a.Note = "the request held a placeholder in another place than that of its credential; it passed unchanged"
	}
	return a
}

// replace adds a plain credential: the client's field is lost, unless it holds the placeholder.
func (c *Credential) replace(a *Answer) {
	a.Added = c.now.Load()
	if a.Added == nil {
		a.Refused, a.Unavailable = c.unavailable(), true
		return
	}
	a.Kind = "inject"
	given := make([]secret.Field, len(a.Fields))
	for i := range a.Fields {
		given[i] = secret.Field(a.Fields[i])
	}
	out := make(http1.Fields, 0, len(given)+2)
	for _, f := range a.Added.Inject(given) {
		out = append(out, http1.Field(f))
	}
	a.Fields = out
}

func (c *Credential) unavailable() string {
	return "the credential " + c.Name + " cannot be had now"
}

// apply fills the placeholder, adds the secret where none was sent, and refuses every other credential.
func (c *Credential) apply(key *Key, r *Request, a *Answer) {
	all := c.find(r)
	gives := r.Rule != ""
	if field := c.tenant(r); field != "" && !c.letsForeign(r.Target.Path) {
		a.Refused = "the request chooses an account by " + field + "; write set: {" + field + ": …} in the rule for the host, or leave it out"
		return
	}
	if media, ok := r.parameterBody(); ok && len(c.Bodies) > 0 && !c.letsForeign(r.Target.Path) {
		if r.Body == nil {
			a.NeedsBody = true
			return
		}
		if in := c.foreignInBody(r, media); in != "" {
			a.Refused = "the request may have a credential in " + in + ", which " + c.label() + " would take; egressd adds that of " + c.Name
			return
		}
	}
	if len(all) > 1 {
		a.Refused = "the request has two credentials, in " + all[0].name + " and " + all[1].name + "; send one"
		return
	}
	if len(all) == 1 {
		one := all[0]
		fill, template := c.fits(r, &one, key.core(r.Sandbox, c.Name))
		switch {
		case !fill && r.gave(&one):
		case !fill && c.letsForeign(r.Target.Path):
			a.Note = "the request had a credential of the sandbox's own in " + one.name
			a.Kind = "foreign"
		case !fill:
			a.Refused = "the request has a credential in " + one.name + " that is not the placeholder of " + c.Name + " in the way that it is written there; send the placeholder, or none"
		case gives:
			c.fill(a, &one, template)
		}
		return
	}
	if gives {
		c.add(r, a)
	}
}

// isHandedOut reports whether a request that a server has named carries credentials, all of which the server has given.
func (c *Credential) isHandedOut(r *Request) bool {
	all := c.find(r)
	return len(all) > 0 && !slices.ContainsFunc(all, func(one found) bool { return one.field >= 0 && !r.gave(&one) })
}

// tenant returns a field by which the sandbox chooses an account, or "". Servers may take "_" in a name for "-".
func (c *Credential) tenant(r *Request) string {
	for _, one := range c.Tenants {
		is := func(name string) bool { return strings.EqualFold(strings.ReplaceAll(name, "_", "-"), one) }
		if !slices.ContainsFunc(r.Set, is) && slices.ContainsFunc(r.Fields, func(f http1.Field) bool { return is(f.Name) && f.Value != "" }) {
			return one
		}
	}
	return ""
}

// gave reports whether the server has told the client to send a field.
func (r *Request) gave(one *found) bool {
	return one.field >= 0 && slices.ContainsFunc(r.Given, func(f http1.Field) bool {
		return strings.EqualFold(f.Name, one.name) && f.Value == one.value
	})
}

func (c *Credential) letsForeign(path string) bool {
	for _, lets := range c.ForeignPaths {
		if lets(path) {
			return true
		}
	}
	return false
}

// fits reports whether a credential is the placeholder in one of the places and forms of c. The template has "{}"
// where the secret stands.
func (c *Credential) fits(r *Request, one *found, core string) (ok bool, template string) {
	for i := range c.Places {
		p := &c.Places[i]
		switch {
		case !p.At(r.Host):
		case one.field >= 0 && p.Header != "" && strings.EqualFold(p.Header, one.name), one.field < 0 && p.Query != "" && p.Query == one.name:
			if template = c.template(p.Forms, one.value, core); template != "" {
				return true, template
			}
		}
	}
	return false, ""
}

// template returns the value with "{}" in the place of the placeholder, or "".
func (c *Credential) template(forms Form, value, core string) string {
	if forms&Bare != 0 && c.isPlaceholder(value, core) {
		return "{}"
	}
	scheme, rest, _ := strings.Cut(value, " ")
	switch {
	case strings.EqualFold(scheme, "Bearer") && forms&Bearer != 0 && c.isPlaceholder(rest, core):
		return "Bearer {}"
	case strings.EqualFold(scheme, "token") && forms&Token != 0 && c.isPlaceholder(rest, core):
		return "token {}"
	case !strings.EqualFold(scheme, "Basic") || forms&anyBasic == 0:
		return ""
	}
	user, password, ok := basicParts(rest)
	switch {
	case !ok || strings.Contains(user+password, "{}"):
	case forms&BasicPassword != 0 && c.isPlaceholder(password, core) && isPart(user, maxUser) && !c.begins(user):
		return "Basic " + user + ":{}"
	case forms&BasicUser != 0 && c.isPlaceholder(user, core) && isPart(password, maxPassword) && !c.begins(password):
		return "Basic {}:" + password
	}
	return ""
}

// begins reports whether a text begins as secrets of the kind do.
func (c *Credential) begins(text string) bool {
	return slices.ContainsFunc(c.Prefixes, func(prefix string) bool { return strings.HasPrefix(text, prefix) })
}

// basicParts reads Basic credentials (RFC 7617, section 2). Base64 that could be read in two ways is refused.
func basicParts(encoded string) (user, password string, ok bool) {
	coding := base64.StdEncoding.Strict()
	if !strings.Contains(encoded, "=") {
		coding = base64.RawStdEncoding.Strict()
	}
	if strings.ContainsAny(encoded, "\r\n") { // which the decoder passes over
		return "", "", false
	}
	text, err := coding.DecodeString(encoded)
	if err != nil {
		return "", "", false
	}
	user, password, ok = strings.Cut(string(text), ":")
	return user, password, ok
}

// isPart reports whether the client may write s, of at most so many bytes, beside a placeholder.
func isPart(s string, most int) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return false
		}
	}
	return len(s) <= most
}

// fill writes the secret over the placeholder.
func (c *Credential) fill(a *Answer, one *found, template string) {
	value, ok := c.value(a, template)
	switch {
	case !ok:
	case one.field >= 0:
		a.Fields = append(http1.Fields(nil), a.Fields...)
		a.Fields[one.field].Value = value
	default:
		q := a.Target.Query
		a.Target.Query = q[:one.parameter.from] + queryEscaped(value) + q[one.parameter.to:]
	}
}

// add writes the secret where the client sent none.
func (c *Credential) add(r *Request, a *Answer) {
	for i := range c.Places {
		p := &c.Places[i]
		if p.Add == "" || !p.At(r.Host) || !strings.HasPrefix(r.Target.Path, p.Under) {
			continue
		}
		if value, ok := c.value(a, p.Add); ok && p.Header != "" {
			a.Fields = append(append(http1.Fields(nil), a.Fields...).Delete(p.Header), http1.Field{Name: p.Header, Value: value})
		} else if ok {
			a.Target.Query = strings.TrimPrefix(a.Target.Query+"&", "&") + p.Query + "=" + queryEscaped(value)
			a.Target.HasQuery = true
		}
		return
	}
}

// value is the template with the secret in it. It refuses the request where the secret cannot be had.
func (c *Credential) value(a *Answer, template string) (string, bool) {
	a.Added = c.now.Load()
	if a.Added == nil || c.isOver() {
		a.Added, a.Refused, a.Unavailable = nil, c.unavailable(), true
		return "", false
	}
	a.Kind = c.label()
	return filled(a.Added, template), true
}

// filled writes a secret into a template. What stands behind "Basic " is encoded.
func filled(s *secret.Secret, template string) string {
	value := s.Fill(template)
	if rest, basic := strings.CutPrefix(value, "Basic "); basic {
		value = "Basic " + base64.StdEncoding.EncodeToString([]byte(rest))
	}
	return value
}

// label is the kind of the credential, as records have it.
func (c *Credential) label() string {
	if c.Kind == "" {
		return c.Name
	}
	return c.Kind
}

const unreserved = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"

func queryEscaped(text string) string {
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; strings.IndexByte(unreserved, c) >= 0 {
			b.WriteByte(c)
		} else {
			const digits = "0123456789ABCDEF"
			b.Write([]byte{'%', digits[c>>4], digits[c&15]})
		}
	}
	return b.String()
}
