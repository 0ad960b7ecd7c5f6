package sandbox

import (
	"testing"

	"github.com/egressd/egressd/policy"
)

func TestWhoHandsANetworkIn(t *testing.T) {
	listed := directory(t,
		Entry{Name: "web", Enter: "unix:/web"},
		Entry{Name: "picky", Enter: "unix:/picky", UIDs: []uint32{7}},
		Entry{Name: "user", UIDs: []uint32{1000}},
		Entry{Name: "user-token", UIDs: []uint32{2000}, Token: "t"},
		Entry{Name: "token", Token: "t"},
		Entry{Name: "both", Enter: "unix:/both", Token: "t"},
	)
	empty := directory(t)
	for _, row := range []struct {
		says string
		in   *Directory
		who  Visitor
		want string
	}{
		{"by a socket of its own", listed, Visitor{Door: "unix:/web", UID: 5}, "web"},
		{"root, by a sandbox's own socket", listed, Visitor{Door: "unix:/web", Host: true}, "web"},
		{"with its name", listed, Visitor{Door: "unix:/web", Name: "web"}, "web"},
		{"with another's name", listed, Visitor{Door: "unix:/web", Name: "user"}, ""},
		{"root, with another's name, by a sandbox's own socket", listed, Visitor{Door: "unix:/web", Name: "user", Host: true}, ""},
		{"as another user of another's socket", listed, Visitor{Door: "unix:/web", UID: 1000}, "web"},
		{"a user that its socket is for", listed, Visitor{Door: "unix:/picky", UID: 7}, "picky"},
		{"another user", listed, Visitor{Door: "unix:/picky", UID: 1000}, ""},
		{"a socket beside a token", listed, Visitor{Door: "unix:/both"}, "both"},
		{"by the shared socket, a user", listed, Visitor{Door: "unix:/all", UID: 1000}, "user"},
		{"by the shared socket, nobody", listed, Visitor{Door: "unix:/all", UID: 1001}, ""},
		{"a user who has to show a token", listed, Visitor{Door: "unix:/all", UID: 2000}, ""},
		{"a name that is not believed", listed, Visitor{Door: "unix:/all", UID: 1001, Name: "token"}, ""},
		{"a user with a name that is not believed", listed, Visitor{Door: "unix:/all", UID: 1000, Name: "token"}, ""},
		{"a name that is believed", listed, Visitor{Door: "unix:/all", UID: 0, Name: "token", Host: true}, "token"},
		{"a name that is not there", listed, Visitor{Door: "unix:/all", UID: 0, Name: "other", Host: true}, ""},
		{"without sandboxes, anybody", empty, Visitor{Door: "unix:/all", UID: 5}, Default},
		{"without sandboxes, a name that is not believed", empty, Visitor{Door: "unix:/all", UID: 5, Name: "web"}, ""},
		{"without sandboxes, a name that is believed", empty, Visitor{Door: "unix:/all", Name: "web", Host: true}, "web"},
	} {
		got, err := row.in.Enter(row.who)
		if got.Name != row.want || (err == nil) != (row.want != "") {
			t.Errorf("%s: %q, %v; want %q", row.says, got.Name, err, row.want)
		}
	}
}

func TestAStayIsItsSandboxAsLongAsItIsThere(t *testing.T) {
	d := directory(t, Entry{Name: "web", Enter: "unix:/web"})
	is := func(says string, p Peer, want string) {
		t.Helper()
		if got, err := d.Identify(p); got.Name != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", says, got.Name, err, want)
		}
	}
	s := d.Admit(policy.Sandbox{Name: "web"})
	by := Peer{Listener: s.Listener()}
	is("there", by, "web")
	is("with a token that nobody asks for", with(by, "web", "x"), "web")
	is("with another's name", with(by, "other", "x"), "")
	is("by the door itself", Peer{Listener: "unix:/web"}, "")
	is("with its name, elsewhere", with(Peer{Listener: "shared"}, "web", ""), "")
	other := d.Admit(policy.Sandbox{Name: "web"})
	if other.ID == s.ID {
		t.Error("two stays are one")
	}
	if err := d.Set([]Entry{{Name: "other", Token: "t"}}); err != nil {
		t.Fatal(err)
	}
	is("removed from the configuration", by, "")
	if err := d.Set(nil); err != nil {
		t.Fatal(err)
	}
	is("with none listed", by, "web")
	d.Dismiss(s)
	is("gone", by, "")
	is("the other", Peer{Listener: other.Listener()}, "web")
	is("one that never was", Peer{Listener: stayPrefix + "99"}, "")
}
