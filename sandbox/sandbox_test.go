package sandbox

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func directory(t *testing.T, entries ...Entry) *Directory {
	t.Helper()
	d, err := NewDirectory(entries)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func claims(user, password string) Peer {
	return Peer{User: user, Password: password, HasCredentials: true, Listener: "shared"}
}

func own(p Peer, listener string) Peer {
	p.Listener = listener
	return p
}

func TestIdentify(t *testing.T) {
	d := directory(t, Entry{Name: "ci", Token: "right"}, Entry{Name: "web", Listener: "unix:/web"}, Entry{Name: "both", Token: "t", Listener: "unix:/both"})
	for _, row := range []struct {
		says string
		peer Peer
		want string
	}{
		{"a sandbox with its token", claims("ci", "right"), "ci"},
		{"a wrong token", claims("ci", "wrong"), ""},
		{"an empty token", claims("ci", ""), ""},
		{"nobody", Peer{Listener: "shared"}, ""},
		{"a name that nobody has", claims("root", "right"), ""},
		{"a sandbox without a token, claimed with an empty one", claims("web", ""), ""},
		{"whoever reaches a listener of its own", Peer{Listener: "unix:/web"}, "web"},
		{"another's valid token on a listener of one's own", own(claims("ci", "right"), "unix:/web"), ""},
		{"its own name there", own(claims("web", "anything"), "unix:/web"), "web"},
		{"a sandbox that has both, by token elsewhere", claims("both", "t"), ""},
		{"a sandbox that has both, by its listener alone", Peer{Listener: "unix:/both"}, ""},
		{"a sandbox that has both, with both", own(claims("both", "t"), "unix:/both"), "both"},
		{"a sandbox that has both, with a wrong token", own(claims("both", "wrong"), "unix:/both"), ""},
		{"another's listener and one's own token", own(claims("both", "t"), "unix:/web"), ""},
	} {
		who, err := d.Identify(row.peer)
		if who.Name != row.want || (row.want == "") != errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %q, %v; want %q", row.says, who.Name, err, row.want)
		}
	}
}

func TestWithoutEntriesEverybodyIsTheDefault(t *testing.T) {
	d := directory(t)
	if who, err := d.Identify(claims("any", "thing")); who.Name != Default || err != nil {
		t.Errorf("%v, %v", who, err)
	}
	if d.Credentials(Peer{Listener: "shared"}) {
		t.Error("credentials are asked for, and nobody has any")
	}
}

func TestCredentialsAreAskedForWhereTheyDecide(t *testing.T) {
	d := directory(t, Entry{Name: "ci", Token: "right"}, Entry{Name: "web", Listener: "unix:/web"})
	if !d.Credentials(Peer{Listener: "shared"}) || d.Credentials(own(claims("x", "y"), "unix:/web")) {
		t.Error("credentials belong to the shared listener only")
	}
}

func TestSetKeepsTheOldSandboxesOnError(t *testing.T) {
	d := directory(t, Entry{Name: "ci", Token: "right"})
	for says, entries := range map[string][]Entry{
		"twice":             {{Name: "a", Token: "x"}, {Name: "a", Token: "y"}},
		"a shared listener": {{Name: "a", Listener: "l"}, {Name: "b", Listener: "l"}},
		"no way to be it":   {{Name: "a"}},
		"no name":           {{Token: "t"}},
		"a shared uid":      {{Name: "a", UIDs: []uint32{7}}, {Name: "b", UIDs: []uint32{8, 7}}},
		"a shared source":   {{Name: "a", Sources: prefixes("10.0.0.0/8")}, {Name: "b", Sources: prefixes("10.0.0.0/8")}},
		"a shared name":     {{Name: "a", Certificate: "x.test"}, {Name: "b", Certificate: "x.test"}},
		"no connection is":  {{Name: "a", UIDs: []uint32{7}, Sources: prefixes("10.0.0.0/8")}},
		"host bits":         {{Name: "a", Sources: prefixes("10.0.0.1/8")}},
		"a mapped source":   {{Name: "a", Sources: prefixes("::ffff:10.0.0.0/104")}},
		"a source of zero":  {{Name: "a", Sources: make([]netip.Prefix, 1)}},
	} {
		if err := d.Set(entries); err == nil {
			t.Errorf("%s: no error", says)
		}
	}
	if _, err := d.Identify(claims("ci", "right")); err != nil {
		t.Error(err)
	}
	if err := d.Set([]Entry{{Name: "ci", Token: "new"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Identify(claims("ci", "right")); err == nil {
		t.Error("the old token still opens")
	}
}

func TestFailuresWaitLongerAndAreForgotten(t *testing.T) {
	d := directory(t, Entry{Name: "ci", Token: "right"})
	now := time.Unix(1000, 0)
	p := claims("ci", "wrong")
	p.Addr = netip.MustParseAddrPort("10.99.0.1:1000")
	var last time.Duration
	for range 10 {
		delay := d.Failed(p, now)
		if delay < last || delay > longestDelay {
			t.Fatalf("%s follows %s", delay, last)
		}
		last = delay
		p.Addr = netip.AddrPortFrom(p.Addr.Addr(), p.Addr.Port()+1) // another connection, the same source
	}
	if last != longestDelay {
		t.Errorf("the tenth failure waits %s", last)
	}
	other := claims("ci", "wrong")
	if delay := d.Failed(other, now); delay != firstDelay {
		t.Errorf("another source waits %s", delay)
	}
	if delay := d.Failed(p, now.Add(2*forgetAfter)); delay != firstDelay {
		t.Errorf("after a while it waits %s", delay)
	}
}

func TestManySourcesDoNotGrowTheTable(t *testing.T) {
	d := directory(t, Entry{Name: "ci", Token: "right"})
	for i := range 3 * sourcesMost {
		p := claims("ci", "wrong")
		p.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 1)
		d.Failed(p, time.Now())
	}
	if n := len(d.failures.sources); n > sourcesMost {
		t.Errorf("%d sources are kept", n)
	}
}

func TestPlainNames(t *testing.T) {
	for name, plain := range map[string]bool{
		"ci": true, "fix-login": true, "a.b_c": true, "7": true, strings.Repeat("a", 64): true,
		"": false, "-a": false, ".a": false, "a b": false, "a/b": false, "ä": false, "a\n": false, strings.Repeat("a", 65): false,
	} {
		if PlainName(name) != plain {
			t.Errorf("%q: %v", name, !plain)
		}
	}
}
