package sandbox

import (
	"crypto/x509"
	"errors"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"testing"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func from(addr string) Peer {
	return Peer{Listener: "shared", Addr: netip.AddrPortFrom(netip.MustParseAddr(addr), 4000)}
}

func of(uid uint32) Peer { return Peer{Listener: "unix:/shared", UID: uid, HasUID: true} }

func shows(p Peer, names ...string) Peer {
	p.Certificate = names
	return p
}

func with(p Peer, user, password string) Peer {
	p.User, p.Password, p.HasCredentials = user, password, true
	return p
}

// everyKind is a directory in which each kind of evidence, and some pairs of
// them, are somebody's.
func everyKind(t *testing.T) *Directory {
	return directory(t,
		Entry{Name: "token", Token: "t"},
		Entry{Name: "listener", Listener: "unix:/own"},
		Entry{Name: "user", UIDs: []uint32{1000, 1001}},
		Entry{Name: "user-token", UIDs: []uint32{2000}, Token: "ut"},
		Entry{Name: "user-listener", UIDs: []uint32{3000}, Listener: "unix:/theirs"},
		Entry{Name: "net", Sources: prefixes("10.0.0.0/8", "fd00::/16")},
		Entry{Name: "subnet", Sources: prefixes("10.1.0.0/16")},
		Entry{Name: "host", Sources: prefixes("10.1.2.3/32", "fd00::7/128")},
		Entry{Name: "net-token", Sources: prefixes("172.18.0.0/16"), Token: "nt"},
		Entry{Name: "cert", Certificate: "ci.test"},
		Entry{Name: "spiffe", Certificate: "spiffe://test/ci"},
		Entry{Name: "cert-net", Certificate: "far.test", Sources: prefixes("192.168.0.0/16")},
		Entry{Name: "cert-token", Certificate: "both.test", Token: "ct"},
	)
}

func TestIdentifyByWhatAPeerHas(t *testing.T) {
	d := everyKind(t)
	for _, row := range []struct {
		says string
		peer Peer
		want string
	}{
		{"a user", of(1000), "user"},
		{"another user of the same sandbox", of(1001), "user"},
		{"a user who is nobody's", of(1002), ""},
		{"root, whom nobody listed", of(0), ""},
		{"no user, which is not user 0", Peer{Listener: "unix:/shared"}, ""},
		{"a uid that the kernel did not tell", Peer{Listener: "unix:/shared", UID: 1000}, ""},
		{"a user with the name of the sandbox", with(of(1000), "user", "any"), "user"},
		{"a user with another's name", with(of(1000), "listener", ""), ""},
		{"a user with another's token", with(of(1000), "token", "t"), ""},
		{"a user who is nobody's, with a token", with(of(1002), "token", "t"), "token"},
		{"a user of one and the listener of another", own(of(1000), "unix:/own"), ""},
		{"a user without the token that the sandbox needs", of(2000), ""},
		{"a user with it", with(of(2000), "user-token", "ut"), "user-token"},
		{"the token without the user", with(of(1002), "user-token", "ut"), ""},
		{"the token of a sandbox with a user, over TCP", with(from("203.0.113.1"), "user-token", "ut"), ""},
		{"a user without the listener that the sandbox needs", of(3000), ""},
		{"a user with it", own(of(3000), "unix:/theirs"), "user-listener"},
		{"that listener without the user", own(of(1002), "unix:/theirs"), ""},

		{"an address", from("10.9.9.9"), "net"},
		{"an address in the longer of two prefixes", from("10.1.9.9"), "subnet"},
		{"an address in the longest of three", from("10.1.2.3"), "host"},
		{"an address beside it", from("10.1.2.4"), "subnet"},
		{"an address of no prefix", from("11.0.0.1"), ""},
		{"an IPv6 address", from("fd00::8"), "net"},
		{"an IPv6 address in the longer prefix", from("fd00::7"), "host"},
		{"an IPv4 address in IPv6 clothes", from("::ffff:10.1.2.3"), "host"},
		{"an address with a zone", from("fd00::7%eth0"), "host"},
		{"a link-local address", from("fe80::7%eth0"), ""},
		{"an address with another's token", with(from("10.9.9.9"), "token", "t"), ""},
		{"an address with its own name", with(from("10.9.9.9"), "net", ""), "net"},
		{"an address with the name of the shorter prefix", with(from("10.1.9.9"), "net", ""), ""},
		{"an address without the token that the sandbox needs", from("172.18.0.1"), ""},
		{"an address with it", with(from("172.18.0.1"), "net-token", "nt"), "net-token"},
		{"an address with a wrong one", with(from("172.18.0.1"), "net-token", "t"), ""},
		{"the token from elsewhere", with(from("172.19.0.1"), "net-token", "nt"), ""},
		{"an address of one and the listener of another", own(from("10.9.9.9"), "unix:/own"), ""},
		{"an address that is nobody's, with a token", with(from("203.0.113.1"), "token", "t"), "token"},

		{"a certificate", shows(from("203.0.113.1"), "ci.test"), "cert"},
		{"a SPIFFE ID", shows(from("203.0.113.1"), "x.test", "spiffe://test/ci"), "spiffe"},
		{"a SPIFFE ID below another", shows(from("203.0.113.1"), "spiffe://test/ci/x"), ""},
		{"a certificate that is nobody's", shows(from("203.0.113.1"), "x.test", "*.test", "CI.test"), ""},
		{"a certificate that is nobody's, with a token", with(shows(from("203.0.113.1"), "x.test"), "token", "t"), "token"},
		{"a certificate of two sandboxes", shows(from("203.0.113.1"), "ci.test", "spiffe://test/ci"), ""},
		{"a certificate that says one name twice", shows(from("203.0.113.1"), "ci.test", "ci.test"), "cert"},
		{"a certificate from another's address", shows(from("10.9.9.9"), "ci.test"), ""},
		{"a certificate with another's token", with(shows(from("203.0.113.1"), "ci.test"), "token", "t"), ""},
		{"a certificate without the address that the sandbox needs", shows(from("203.0.113.1"), "far.test"), ""},
		{"a certificate with it", shows(from("192.168.7.7"), "far.test"), "cert-net"},
		{"that address without the certificate", from("192.168.7.7"), ""},
		{"a certificate without the token that the sandbox needs", shows(from("203.0.113.1"), "both.test"), ""},
		{"a certificate with it", with(shows(from("203.0.113.1"), "both.test"), "cert-token", "ct"), "cert-token"},
		{"the token without the certificate", with(from("203.0.113.1"), "cert-token", "ct"), ""},
	} {
		who, err := d.Identify(row.peer)
		if who.Name != row.want || (row.want == "") != errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %q, %v; want %q", row.says, who.Name, err, row.want)
		}
	}
}

func TestALinkLocalAddressIsInNoPrefix(t *testing.T) {
	d := directory(t, Entry{Name: "all", Sources: prefixes("::/0", "0.0.0.0/0")})
	for text, want := range map[string]string{"fe80::7%eth0": "", "fe80::7": "", "fd00::7": "all", "169.254.0.7": "all"} {
		if who, _ := d.Identify(from(text)); who.Name != want {
			t.Errorf("%s is %q, want %q", text, who.Name, want)
		}
	}
}

// TestNobodyIsTwo puts all evidence together in all ways: whoever is one
// sandbox has everything that it needs, and nothing that is another's.
func TestNobodyIsTwo(t *testing.T) {
	d := everyKind(t)
	known := d.known.Load()
	for _, listener := range []string{"shared", "unix:/own", "unix:/theirs"} {
		for _, base := range []Peer{{}, of(1000), of(2000), of(3000), of(9), from("10.1.2.3"), from("172.18.0.1"), from("192.168.1.1"), from("203.0.113.1")} {
			for _, names := range [][]string{nil, {"ci.test"}, {"far.test"}, {"both.test"}, {"spiffe://test/ci", "x.test"}} {
				for user, e := range known.byName {
					for _, token := range []string{"", "t", "ut", "nt", "ct"} {
						p := with(shows(own(base, listener), names...), user, token)
						who, err := d.Identify(p)
						if err == nil && who.Name != user {
							t.Errorf("%+v is %q", p, who.Name)
						}
						known.owners(&p, nil, func(key evidenceKinds, owner *registered) {
							if err == nil && (owner != e || e.keys&key == 0) {
								t.Errorf("%+v is %q, and has what is another's", p, who.Name)
							}
						})
					}
				}
			}
		}
	}
}

func TestTheKindIsWhatIsHardestToComeBy(t *testing.T) {
	d := everyKind(t)
	for want, p := range map[string]Peer{
		"token": with(Peer{}, "token", "t"), "listener": {Listener: "unix:/own"}, "uid": own(of(3000), "unix:/theirs"),
		"source": with(from("172.18.0.1"), "net-token", "nt"), "certificate": shows(from("192.168.7.7"), "far.test"),
	} {
		if who, err := d.Identify(p); who.Kind != want || err != nil {
			t.Errorf("%+v: %v, want %s", who, err, want)
		}
	}
}

// TestCredentialsAreAskedOfThoseWhoNeedThem also where what they show is wrong.
func TestCredentialsAreAskedOfThoseWhoNeedThem(t *testing.T) {
	d := everyKind(t)
	for _, p := range []Peer{of(1000), from("10.0.0.1"), with(from("10.0.0.1"), "x", "y"), shows(from("203.0.113.1"), "ci.test")} {
		if d.Credentials(p) {
			t.Errorf("%+v is asked for credentials", p)
		}
	}
	for _, p := range []Peer{of(2000), with(of(2000), "user-token", "ut"), of(9), from("172.18.0.1"), from("203.0.113.1")} {
		if !d.Credentials(p) {
			t.Errorf("%+v is not asked for credentials", p)
		}
	}
}

func TestUsersOfOneSocketWaitApart(t *testing.T) {
	if of(1000).Source() == of(1001).Source() || of(0).Source() == (Peer{Listener: "unix:/shared"}).Source() {
		t.Error("two users of one socket are one source")
	}
}

func TestCertificateNames(t *testing.T) {
	id := func(text string) *url.URL {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	cert := &x509.Certificate{
		DNSNames: []string{"ci.test", "CI.test", "*.test", "10.0.0.1", "spiffe://test/forged", "a b", ""},
		URIs:     []*url.URL{id("spiffe://test/ci"), id("https://test/ci")},
	}
	cert.Subject.CommonName = "cn.test"
	if got := CertificateNames(cert); !slices.Equal(got, []string{"ci.test", "spiffe://test/ci"}) {
		t.Errorf("got %q", got)
	}
}

func TestProcessOf(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	uid := uint32(os.Geteuid())
	if p := ProcessOf(os.Getpid(), uid); p == nil || p.PID != os.Getpid() || p.Exe != exe || p.Argv != nil {
		t.Errorf("this process is %+v, want %s", p, exe)
	}
	if p := ProcessOf(os.Getpid(), uid+1); p == nil || p.PID != os.Getpid() || p.Exe != "" {
		t.Errorf("what is another user's by now is said to be %+v", p)
	}
	if ProcessOf(0, uid) != nil || ProcessOf(-1, uid) != nil {
		t.Error("no process is one")
	}
}

// TestSandboxesOfATemplate identifies peers by a user that has an id in it. Whoever holds the token of a template may
// choose the id, and reaches nothing but sandboxes of that template by it.
func TestSandboxesOfATemplate(t *testing.T) {
	d := directory(t,
		Entry{Name: "e2b-{id}", User: "sbx-{id}", Token: "platform"},
		Entry{Name: "far-{id}", Token: "far", Sources: prefixes("10.0.0.0/8")},
		Entry{Name: "build", User: "builder", Token: "b"},
		Entry{Name: "net", Sources: prefixes("192.168.0.0/16")},
	)
	for _, row := range []struct {
		says string
		peer Peer
		want string // "": nobody
	}{
		{"an id", with(from("192.0.2.1"), "sbx-7f3a", "platform"), "e2b-7f3a"},
		{"another", with(from("192.0.2.1"), "sbx-Z", "platform"), "e2b-Z"},
		{"another token", with(from("192.0.2.1"), "sbx-7f3a", "b"), ""},
		{"no token", with(from("192.0.2.1"), "sbx-7f3a", ""), ""},
		{"no credentials", from("192.0.2.1"), ""},
		{"the name for the user", with(from("192.0.2.1"), "e2b-7f3a", "platform"), ""},
		{"the template", with(from("192.0.2.1"), "sbx-{id}", "platform"), ""},
		{"the template's name", with(from("192.0.2.1"), "e2b-{id}", "platform"), ""},
		{"no id in it", with(from("192.0.2.1"), "sbx-", "platform"), ""},
		{"more than an id", with(from("192.0.2.1"), "sbx-a.b", "platform"), ""},
		{"a user beside the template", with(from("192.0.2.1"), "build", "platform"), ""},
		{"who has a user of its own", with(from("192.0.2.1"), "builder", "b"), "build"},
		{"its name", with(from("192.0.2.1"), "build", "b"), ""},
		{"its user with the template's token", with(from("192.0.2.1"), "builder", "platform"), ""},
		{"an address beside the token", with(from("10.1.1.1"), "far-1", "far"), "far-1"},
		{"another address", with(from("192.0.2.1"), "far-1", "far"), ""},
		{"an address without the token", from("10.1.1.1"), ""},
		{"the address of a template with the token of another", with(from("10.1.1.1"), "sbx-1", "platform"), ""},
		{"another user with the token of the address", with(from("10.1.1.1"), "sbx-1", "far"), ""},
		{"no id with it", with(from("10.1.1.1"), "far-", "far"), ""},
		{"the address of another sandbox", with(from("192.168.1.1"), "sbx-1", "platform"), ""},
	} {
		who, err := d.Identify(row.peer)
		if who.Name != row.want || (err == nil) != (row.want != "") {
			t.Errorf("%s: is %q, %v; want %q", row.says, who.Name, err, row.want)
		}
	}
	if !d.Credentials(from("192.0.2.1")) || !d.Credentials(from("10.1.1.1")) {
		t.Error("nobody is asked for the token of a template")
	}
	far := from("10.1.1.1")
	if h := d.Holder(&far); h.Sandbox != "" {
		t.Errorf("all sandboxes of a template are counted as %q", h.Sandbox)
	}
	for _, v := range []Attacher{{Name: "e2b-{id}", Host: true}, {Name: "e2b-1", Host: true}} {
		if who, err := d.IdentifyAttacher(v); err == nil {
			t.Errorf("a network was attached as %q", who.Name)
		}
	}
	for name, want := range map[string]string{"e2b-1": "e2b-{id}", "far-x": "far-{id}", "build": "", "e2b-": "", "e2b-a.b": ""} {
		if got := d.Template(name); got != want || d.Listed(name) != (want != "" || name == "build") {
			t.Errorf("%s is of %q, want %q", name, got, want)
		}
	}
	for _, entries := range [][]Entry{
		{{Name: "a-{id}", User: "u", Token: "t"}},
		{{Name: "a", User: "u-{id}", Token: "t"}},
		{{Name: "a-{id}", Sources: prefixes("10.0.0.0/8")}},
		{{Name: "a-{id}", Token: "t", Enter: "unix:/e"}},
		{{Name: "a", User: "u", Token: "t"}, {Name: "b", User: "u", Token: "s"}},
	} {
		if _, err := NewDirectory(entries); err == nil {
			t.Errorf("%+v is a directory", entries)
		}
	}
}
