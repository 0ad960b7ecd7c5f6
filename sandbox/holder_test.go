package sandbox

import (
	"net/netip"
	"testing"

	"github.com/egressd/egressd/policy"
)

func TestHoldersOfConnections(t *testing.T) {
	d, err := NewDirectory([]Entry{
		{Name: "web", Listener: "own"},
		{Name: "user", UIDs: []uint32{7}},
		{Name: "host", Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("2001:db8:1::/48")}},
		{Name: "both", Token: "secret", Sources: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}},
		{Name: "word", Token: "secret"},
	})
	if err != nil {
		t.Fatal(err)
	}
	attached := d.Attach(policy.Sandbox{Name: "host"})
	at := func(listener, addr string) Peer {
		return Peer{Listener: listener, Addr: netip.MustParseAddrPort(addr)}
	}
	of := func(name string) Holder { return Holder{Sandbox: name} }
	from := func(addr string) Holder { return Holder{addr: netip.MustParseAddr(addr)} }
	for _, row := range []struct {
		says string
		peer Peer
		want Holder
	}{
		{"who has a listener", at("own", "192.0.2.1:1"), of("web")},
		{"who has a user", Peer{Listener: "unix", UID: 7, HasUID: true}, of("user")},
		{"who has an address", at("all", "10.0.0.9:1"), of("host")},
		{"who has an address of IPv6", at("all", "[2001:db8:1:2::3]:1"), of("host")},
		{"who has an address, and will need a token", at("all", "10.0.1.9:1"), of("both")},
		{"who has a attached", Peer{Listener: attached.Listener(), Addr: netip.MustParseAddrPort("127.0.0.1:1")}, of("host")},
		{"a attached that is over", Peer{Listener: "attachment#99"}, Holder{listener: "attachment#99"}},
		{"one address of another's at a listener", at("own", "10.0.0.9:1"), from("10.0.0.9")},
		{"a token that was not shown yet", at("all", "192.0.2.1:1"), from("192.0.2.1")},
		{"a token that was", Peer{Addr: netip.MustParseAddrPort("192.0.2.1:1"), User: "word", Password: "secret", HasCredentials: true}, from("192.0.2.1")},
		{"an address in a form of IPv6", at("all", "[::ffff:192.0.2.1]:1"), from("192.0.2.1")},
		{"one of a network of IPv6", at("all", "[2001:db8:2:3::4]:1"), from("2001:db8:2:3::")},
		{"another one of it", at("all", "[2001:db8:2:3:ffff::9]:2"), from("2001:db8:2:3::")},
		{"one with a zone", at("all", "[fe80::1%lo]:2"), from("fe80::")},
		{"a user who is nobody's", Peer{Listener: "unix", UID: 8, HasUID: true}, Holder{listener: "unix", uid: 8}},
	} {
		if got := d.Holder(&row.peer); got != row.want {
			t.Errorf("%s: counted with %+v, want %+v", row.says, got, row.want)
		}
	}
	d.Detach(attached)
}
