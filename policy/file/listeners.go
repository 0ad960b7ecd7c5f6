package file

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
	"go.yaml.in/yaml/v3"
)

// TLSListener begins the text of a listener on which clients speak TLS first,
// UnixListener that of a socket, and TProxyListener that of one for connections
// that tproxy has taken.
const (
	TLSListener    = "tls:"
	UnixListener   = "unix:"
	TProxyListener = "tproxy:"
)

// NoAdmin is a listen.admin without a listener.
const NoAdmin = "none"

func (r *reader) listen(l *Listen) func(*yaml.Node) {
	return r.section("listen", fields{
		"proxy":        r.listeners("listen.proxy", &l.Proxy),
		"transparent":  r.list("listen.transparent", &l.Transparent, r.captureListener),
		"dns":          r.list("listen.dns", &l.DNS, r.nameListener),
		"enter":        r.list("listen.enter", &l.Enter, r.enter),
		"admin":        r.listener("listen.admin", &l.Admin),
		"client_ca":    r.path("listen.client_ca", &l.ClientCA),
		"server_names": r.list("listen.server_names", &l.ServerNames, r.serverName),

		"open_to_network": r.yes("listen.open_to_network", &l.OpenToNetwork),
	})
}

func (r *reader) listeners(what string, into *[]string) func(*yaml.Node) {
	return r.list(what, into, r.listener)
}

// listener reads "unix:/path", in which variables may stand, or address:port,
// for a proxy also behind "tls:".
func (r *reader) listener(what string, into *string) func(*yaml.Node) {
	return r.fitting(what, into, func(text string) error { return checkListener(text, what == "listen.admin") })
}

// CheckAdmin returns what is wrong with text as listen.admin, or nil.
func CheckAdmin(text string) error { return checkListener(text, true) }

func checkListener(text string, admin bool) error {
	if admin && text == NoAdmin {
		return nil
	}
	if path, ok := strings.CutPrefix(text, "unix:"); ok {
		if !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "${") {
			return fmt.Errorf("%q is not an absolute path; write unix:/path", printable(path))
		}
		return nil
	}
	address, tls := strings.CutPrefix(text, TLSListener)
	at, err := netip.ParseAddrPort(address)
	if err != nil || at.Addr().Zone() != "" || at.Addr().Is4In6() || tls && admin {
		return fmt.Errorf("%q is not an address and a port; write 127.0.0.1:3128, [::1]:3128 or unix:/path", printable(text))
	}
	if admin && at.Port() == 0 {
		return fmt.Errorf("%s has no port that rules could keep sandboxes from; write one, like 127.0.0.1:9464", at)
	}
	if admin && !at.Addr().IsLoopback() {
		return fmt.Errorf("%s can be reached from other machines; write an address in 127.0.0.0/8 or unix:/path", at)
	}
	return nil
}

// captureListener reads address:port, for tproxy behind "tproxy:". Port 0 is refused,
// because redirect rules must name the port.
func (r *reader) captureListener(what string, into *string) func(*yaml.Node) {
	return r.fitting(what, into, func(text string) error {
		at, err := netip.ParseAddrPort(strings.TrimPrefix(text, TProxyListener))
		if err != nil || at.Addr().Zone() != "" || at.Addr().Is4In6() || at.Port() == 0 {
			return fmt.Errorf("%q is not an address and a port; write 10.99.0.2:3129 or [fd99::2]:3129 for connections that NAT redirects, tproxy:127.0.0.1:3129 for those that tproxy takes", printable(text))
		}
		return nil
	})
}

// nameListener reads address:port, where names are asked for over UDP and TCP.
func (r *reader) nameListener(what string, into *string) func(*yaml.Node) {
	return r.fitting(what, into, func(text string) error {
		at, err := netip.ParseAddrPort(text)
		if err != nil || at.Addr().Zone() != "" || at.Addr().Is4In6() {
			return fmt.Errorf("%q is not an address and a port; write 127.0.0.1:53 or [::1]:53", printable(text))
		}
		return nil
	})
}

// socket reads "unix:/path", in which variables may stand. instead says what else
// is wrong with it, and what to write.
func (r *reader) socket(what string, into *string, instead string) func(*yaml.Node) {
	return r.fitting(what, into, func(text string) error {
		if !isUnix(text) {
			return fmt.Errorf("%q is not a Unix socket%s", printable(text), instead)
		}
		return checkListener(text, false)
	})
}

func (r *reader) enter(what string, into *string) func(*yaml.Node) {
	return r.socket(what, into, ", by which alone descriptors can be handed over; write unix:/path")
}

// serverName reads a name that a certificate of a listener is made for.
func (r *reader) serverName(what string, into *string) func(*yaml.Node) {
	return parsed(r, what, into, policy.ParseName)
}

// resolver reads "system", or an address with or without a port.
func (r *reader) resolver(what string, into *string) func(*yaml.Node) {
	return r.fitting(what, into, func(text string) error {
		_, errAddr := netip.ParseAddr(text)
		_, errPort := netip.ParseAddrPort(text)
		if text != "system" && errAddr != nil && errPort != nil {
			return fmt.Errorf("%q is not a resolver; write system, 9.9.9.9 or 9.9.9.9:53", printable(text))
		}
		return nil
	})
}

// checkListeners refuses two listeners at one place.
func (r *reader) checkListeners(f *File) {
	first := make(map[string]string)
	once := func(what, text string) {
		if text == "" || strings.HasSuffix(text, ":0") {
			return
		}
		text = strings.TrimPrefix(strings.TrimPrefix(text, TLSListener), TProxyListener)
		if before, ok := first[text]; ok {
			r.failAt(r.places[what], "%s is %s, and so is %s; give each its own", what, printable(text), before)
		}
		first[text] = what
	}
	each := func(what string, texts []string) {
		for i, text := range texts {
			once(fmt.Sprintf("listen.%s[%d]", what, i), text)
		}
	}
	each("proxy", f.Listen.Proxy)
	each("transparent", f.Listen.Transparent)
	each("dns", f.Listen.DNS)
	each("enter", f.Listen.Enter)
	once("listen.admin", f.Listen.Admin)
	once("notify.answers", f.Notify.Answers)
	once("metrics.listen", f.Metrics.Listen)
	for i, s := range f.Sandboxes {
		once(fmt.Sprintf("sandboxes[%d].listen", i), s.Listen)
		once(fmt.Sprintf("sandboxes[%d].enter", i), s.Enter)
	}
}

// listeners are all that clients come by who mean to.
func (f *File) listeners() []string {
	all := slices.Clone(f.Listen.Proxy)
	for i := range f.Sandboxes {
		all = append(all, f.Sandboxes[i].Listen)
	}
	return all
}

func isTLS(listener string) bool { return strings.HasPrefix(listener, TLSListener) }

func isUnix(listener string) bool { return strings.HasPrefix(listener, UnixListener) }

func isTCP(listener string) bool { return listener != "" && !isUnix(listener) }
