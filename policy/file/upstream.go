package file

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/egressd/egressd/policy"
	"go.yaml.in/yaml/v3"
)

// An UpstreamProxy is the mapping "upstream.proxy": the proxy that egressd connects through. A text stands for a mapping
// with that "url" alone.
type UpstreamProxy struct {
	// SOCKS says that the proxy speaks SOCKS5, not HTTP.
	SOCKS bool

	// TLS says that the connection to the proxy is encrypted. The proxy needs a certificate for the host of At. The
	// authority of that certificate stands among the system's or in "tls.extra_roots".
	TLS bool

	// At is where the proxy listens: a name or an address, and a port.
	At policy.Destination

	// User is the name by which egressd signs in; PasswordFile or PasswordCommand brings the password.
	// Default: egressd does not sign in.
	User            string
	PasswordFile    string
	PasswordCommand []string

	// ByName has the proxy resolve names. Rules about addresses then hold only for requests that
	// name an address. Default: egressd resolves names, and asks the proxy for an address.
	ByName bool

	// Except lists destinations that egressd connects to directly. A pattern without a port stands for
	// every port. Default: none.
	Except []policy.Pattern
}

// destination returns where the proxy listens; p may be nil.
func (p *UpstreamProxy) destination() *policy.Destination {
	if p == nil {
		return nil
	}
	return &p.At
}

// URL returns the address of the proxy as it stands in a file, without credentials.
func (p *UpstreamProxy) URL() string {
	for scheme, how := range proxySchemes {
		if how == (proxyScheme{p.SOCKS, p.TLS}) {
			return scheme + "://" + p.At.String()
		}
	}
	return ""
}

type proxyScheme struct{ socks, tls bool }

var proxySchemes = map[string]proxyScheme{
	"http": {false, false}, "https": {false, true}, "socks5": {true, false}, "socks5+tls": {true, true},
}

func (r *reader) upstreamProxy(into **UpstreamProxy) func(*yaml.Node) {
	const what = "upstream.proxy"
	return func(n *yaml.Node) {
		p := new(UpstreamProxy)
		switch {
		case n.Tag == "!!null":
			return
		case n.Kind == yaml.ScalarNode:
			r.proxyURL(what, p)(n)
		default:
			r.mapping(n, what, fields{
				"url":              r.proxyURL(what+".url", p),
				"user":             r.checked(what+".user", &p.User, problemOfProxyUser),
				"password_file":    r.path(what+".password_file", &p.PasswordFile),
				"password_command": r.command(what+".password_command", &p.PasswordCommand),
				"by_name":          r.yes(what+".by_name", &p.ByName),
				"except":           r.patterns(what+".except", &p.Except),
			})
			r.checkProxy(n, what, p)
		}
		for i := range p.Except {
			p.Except[i] = p.Except[i].AnyPort()
		}
		r.places[what] = placeOf(n)
		*into = p
	}
}

// proxyURL reads a scheme, a host and a port.
func (r *reader) proxyURL(what string, p *UpstreamProxy) func(*yaml.Node) {
	return func(n *yaml.Node) {
		text, ok := r.text(n, what)
		if !ok {
			return
		}
		const write = "write it like \"http://proxy.example.com:3128\""
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.Path != "" && u.Path != "/" {
			r.fail(n, "%s is not the URL of a proxy; %s", what, write)
			return
		}
		how, known := proxySchemes[u.Scheme]
		switch {
		case u.User != nil: // the message must not show it
			r.fail(n, "%s has a user or a password in its URL, where logs could show it; write user and password_file beside url", what)
			return
		case !known:
			r.fail(n, "%s has the scheme %q; write http, https, socks5 or socks5+tls", what, printable(u.Scheme))
			return
		case u.Port() == "":
			r.fail(n, "%s has no port; %s", what, write)
			return
		}
		if p.At, err = policy.ParseDestination(u.Host); err != nil {
			r.fail(n, "%s: %v; %s", what, err, write)
			return
		}
		p.SOCKS, p.TLS = how.socks, how.tls
	}
}

// checkProxy judges what the keys come to together.
func (r *reader) checkProxy(n *yaml.Node, what string, p *UpstreamProxy) {
	secret := p.PasswordFile != "" || p.PasswordCommand != nil
	switch {
	case n.Kind != yaml.MappingNode:
	case !hasKey(n, "url"):
		r.fail(n, "%s has no url; add \"url: http://proxy.example.com:3128\"", what)
	case p.PasswordFile != "" && p.PasswordCommand != nil:
		r.fail(n, "%s has password_file and password_command; keep one", what)
	case p.User != "" && !secret:
		r.fail(n, "%s has a user without a password; add password_file or password_command", what)
	case p.User == "" && secret:
		r.fail(n, "%s has a password without a user; add user", what)
	}
}

func problemOfProxyUser(user string) string {
	if len(user) > 255 || strings.ContainsRune(user, ':') || !printableASCII(user) {
		return "is not up to 255 printable ASCII characters without a colon"
	}
	return ""
}

func (e *expansion) upstreamProxy(p *UpstreamProxy) *UpstreamProxy {
	if p == nil {
		return nil
	}
	out := *p
	if out.PasswordFile != "" {
		e.text("upstream.proxy.password_file", &out.PasswordFile)
	}
	return &out
}

// upstream warns of an upstream proxy that decides where a name leads.
func (w *warnings) upstream() {
	if p := w.file.Upstream.Proxy; p != nil && p.ByName {
		w.say(w.file.places["upstream.proxy"], "%s", p.GivesUp())
	}
}

// GivesUp says what ByName gives up.
func (p *UpstreamProxy) GivesUp() string {
	return fmt.Sprintf("upstream.proxy has by_name: %s resolves names, so egressd cannot see which address a name leads to, and rules about addresses hold by the word of that proxy", p.URL())
}
