package file

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
	"go.yaml.in/yaml/v3"
)

// OpenListeners returns a problem for each proxy and DNS listener beyond loopback that serves whoever can
// reach it: no sandbox has to show a token or a client certificate, or comes from a network of its own. It
// returns none if the file says open_to_network. Variables must be expanded.
func (f *File) OpenListeners() []policy.Problem {
	if f.Listen.OpenToNetwork {
		return nil
	}
	return f.listenersOfAnybody()
}

func (f *File) listenersOfAnybody() (all []policy.Problem) {
	find := func(what, text string, open bool) {
		if open && beyondLoopback(text) {
			at := f.places[what]
			all = append(all, policy.Problem{File: f.name, Line: max(at.Line, 1), Column: max(at.Column, 1), Message: f.openText(what, text)})
		}
	}
	anybody := len(f.Sandboxes) == 0 || slices.ContainsFunc(f.Sandboxes, func(s SandboxRules) bool { return s.Listen == "" && s.takesAnybody() })
	for i, text := range f.Listen.Proxy {
		find(fmt.Sprintf("listen.proxy[%d]", i), text, anybody && !f.asksForCertificates(text))
	}
	for i, text := range f.Listen.DNS {
		find(fmt.Sprintf("listen.dns[%d]", i), text, anybody)
	}
	for i, s := range f.Sandboxes {
		unknown := s.TokenFile == "" && s.Certificate == "" && len(s.Sources) == 0 && !s.Docker.Given()
		find(fmt.Sprintf("sandboxes[%d].listen", i), s.Listen, (unknown || s.takesAnybody()) && !f.asksForCertificates(s.Listen))
	}
	return all
}

// takesAnybody reports whether a source of the sandbox is every address, and nothing else identifies it.
func (s *SandboxRules) takesAnybody() bool {
	return s.TokenFile == "" && s.Certificate == "" && !s.Docker.Given() && len(s.UIDs) == 0 &&
		slices.ContainsFunc(s.Sources, func(p netip.Prefix) bool { return p.Bits() == 0 })
}

func (f *File) asksForCertificates(listener string) bool {
	return isTLS(listener) && f.Listen.ClientCA != ""
}

// beyondLoopback reports whether a listener has an address that other machines or networks can reach.
func beyondLoopback(listener string) bool {
	at, err := netip.ParseAddrPort(strings.TrimPrefix(listener, TLSListener))
	return err == nil && !at.Addr().IsLoopback()
}

func (f *File) openText(what, listener string) string {
	text := fmt.Sprintf("%s (%s) serves whoever can reach it", what, printable(listener))
	names := strings.HasPrefix(what, "listen.dns")
	if i := slices.IndexFunc(f.Allow, func(r policy.Rule) bool { return r.Injects() }); i >= 0 && !names {
		text += fmt.Sprintf(", and adds the credential of rule %s to their requests", f.Allow[i].ID)
	}
	return text + "; give the sandboxes a token_file, certificate or source, listen on 127.0.0.1, or write listen: {open_to_network: true}"
}

func (r *reader) yes(what string, into *bool) func(*yaml.Node) {
	return func(n *yaml.Node) {
		text, ok := "", n.Kind == yaml.ScalarNode && n.Tag == "!!bool"
		if ok {
			text = n.Value
		}
		if text != "true" && text != "false" {
			r.fail(n, "%s is not true or false", what)
			return
		}
		*into = text == "true"
		r.places[what] = placeOf(n)
	}
}
