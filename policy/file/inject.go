package file

import (
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
	"go.yaml.in/yaml/v3"
)

// Injections returns the credentials of all rules of the file, in its order.
func (f *File) Injections() []policy.Injection {
	var all []policy.Injection
	for _, rule := range f.Allow {
		switch {
		case rule.Inject != nil:
			all = append(all, policy.Injection{Rule: rule.ID, Pattern: rule.Pattern, Inject: *rule.Inject})
		case rule.Credential != "":
			all = append(all, policy.Injection{Rule: rule.ID, Pattern: rule.Pattern, Credential: rule.Credential, LFS: rule.LFS != nil})
		}
	}
	return all
}

func (r *reader) inject(what string, into **policy.Inject) func(*yaml.Node) {
	return func(n *yaml.Node) {
		in := &policy.Inject{Value: "{}"}
		*into = in
		before := len(r.problems)
		r.mapping(n, what, fields{
			"header":      r.checked(what+".header", &in.Header, problemOfHeader),
			"value":       r.checked(what+".value", &in.Value, problemOfValue),
			"file":        r.path(what+".file", &in.File),
			"env":         r.checked(what+".env", &in.Env, problemOfVariable),
			"command":     r.command(what+".command", &in.Command),
			"placeholder": r.checked(what+".placeholder", &in.Placeholder, problemOfPlaceholder),
			"refresh":     r.refresh(what+".refresh", &in.Refresh),
		})
		if len(r.problems) == before {
			r.checkInject(n, what, in)
		}
	}
}

// checkInject judges what the keys come to together.
func (r *reader) checkInject(n *yaml.Node, what string, in *policy.Inject) {
	var sources []string
	for _, source := range []struct {
		key string
		set bool
	}{{"file", in.File != ""}, {"env", in.Env != ""}, {"command", in.Command != nil}} {
		if source.set {
			sources = append(sources, source.key)
		}
	}
	switch {
	case in.Header == "":
		r.fail(n, "%s has no header; add \"header: Authorization\" or the like", what)
	case len(sources) == 0:
		r.fail(n, "%s has no secret; add file, env or command", what)
	case len(sources) > 1:
		r.fail(n, "%s has %s; keep one", what, strings.Join(sources, " and "))
	case in.Placeholder != "" && strings.Contains(in.Header+"\n"+in.Value, in.Placeholder):
		r.fail(n, "%s has a placeholder that stands in its header or value; choose another placeholder", what)
	}
}

// checkInjectHost keeps a credential to one host, and out of plain HTTP.
func (r *reader) checkInjectHost(n *yaml.Node, what string, p policy.Pattern) {
	switch {
	case p == policy.Pattern{}:
	case !p.OneHost():
		r.fail(n, "%s: a credential goes to one host, and %s is more; write a rule for each host that is to get it", what, p)
	case p == p.At(80):
		r.fail(n, "%s: a credential never goes over plain http, and %s is port 80 alone; write %s", what, p, p.At(443))
	}
}

// problemOfHeader refuses a name that is none (RFC 9110 section 5.6.2), and
// the fields by which a message is framed, routed or traced.
func problemOfHeader(name string) string {
	lower := strings.ToLower(name)
	switch {
	case len(name) > 128 || strings.ContainsFunc(name, func(c rune) bool { return !isTokenByte(c) }):
		return "is no name of a header field; write one like Authorization"
	case slices.Contains([]string{
		"host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade",
		"http2-settings", "expect", "via", "forwarded",
	}, lower), hasAnyPrefix(lower, "proxy-", "x-forwarded-", "sec-websocket-"):
		return "cannot be " + name + ", which says how the request is sent; write one like Authorization"
	}
	return ""
}

func isTokenByte(c rune) bool {
	return c < 0x80 && (policy.Unreserved(byte(c)) || strings.ContainsRune("!#$%&'*+^`|", c))
}

func hasAnyPrefix(text string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(text, p) })
}

func problemOfValue(value string) string {
	switch {
	case strings.Count(value, "{}") != 1:
		return `does not have {} once, where the secret stands; write "{}" or "Bearer {}"`
	case len(value) > 256 || !printableASCII(value) || strings.TrimSpace(value) != value:
		return `has more than printable ASCII, spaces around it, or more than 256 bytes; write "{}" or "Bearer {}"`
	}
	return ""
}

func problemOfVariable(name string) string {
	plain := func(c rune) bool {
		return c == '_' || c < 0x80 && policy.Unreserved(byte(c)) && c != '-' && c != '.' && c != '~'
	}
	if len(name) > 128 || '0' <= name[0] && name[0] <= '9' || strings.ContainsFunc(name, func(c rune) bool { return !plain(c) }) {
		return "is no name of a variable; write it without $, like API_KEY"
	}
	return ""
}

func problemOfPlaceholder(text string) string {
	if len(text) < 8 || len(text) > 128 || !printableASCII(text) || strings.Contains(text, " ") {
		return "is not 8 to 128 printable ASCII characters without spaces; write one like EXAMPLE_TOKEN"
	}
	return ""
}

func printableASCII(text string) bool {
	return !strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' })
}

// command reads a program and its arguments. A program in a relative folder is
// refused: it would depend on where egressd was started.
func (r *reader) command(what string, into *[]string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		items := r.condition(n, what)
		for i, item := range items {
			text, ok := r.text(item, what)
			switch {
			case !ok:
			case strings.ContainsRune(text, 0):
				r.fail(item, "%s has a NUL; leave it out", what)
			case i == 0 && strings.Contains(text, "/") && !strings.HasPrefix(text, "/"):
				r.fail(item, "%s: %q is a relative path; write it from / on, or the name alone", what, printable(text))
			default:
				*into = append(*into, text)
			}
		}
	}
}

func (r *reader) refresh(what string, into *time.Duration) func(*yaml.Node) {
	read := r.duration(what, into)
	return func(n *yaml.Node) {
		if read(n); *into != 0 && *into < time.Second {
			r.fail(n, "%s cannot be %s; write at least 1s", what, *into)
		}
	}
}
