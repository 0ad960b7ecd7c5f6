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
		who  Attacher
		want string
	}{
		{"by a socket of its own", listed, Attacher{Listener: "unix:/web", UID: 5}, "web"},
		{"root, by a sandbox's own socket", listed, Attacher{Listener: "unix:/web", Host: true}, "web"},
		{"with its name", listed, Attacher{Listener: "unix:/web", Name: "web"}, "web"},
		{"with another's name", listed, Attacher{Listener: "unix:/web", Name: "user"}, ""},
		{"root, with another's name, by a sandbox's own socket", listed, Attacher{Listener: "unix:/web", Name: "user", Host: true}, ""},
		{"as another user of another's socket", listed, Attacher{Listener: "unix:/web", UID: 1000}, "web"},
		{"a user that its socket is for", listed, Attacher{Listener: "unix:/picky", UID: 7}, "picky"},
		{"another user", listed, Attacher{Listener: "unix:/picky", UID: 1000}, ""},
		{"a socket beside a token", listed, Attacher{Listener: "unix:/both"}, "both"},
		{"by the shared socket, a user", listed, Attacher{Listener: "unix:/all", UID: 1000}, "user"},
		{"by the shared socket, nobody", listed, Attacher{Listener: "unix:/all", UID: 1001}, ""},
		{"a user who has to show a token", listed, Attacher{Listener: "unix:/all", UID: 2000}, ""},
		{"a name that is not believed", listed, Attacher{Listener: "unix:/all", UID: 1001, Name: "token"}, ""},
		{"a user with a name that is not believed", listed, Attacher{Listener: "unix:/all", UID: 1000, Name: "token"}, ""},
		{"a name that is believed", listed, Attacher{Listener: "unix:/all", UID: 0, Name: "token", Host: true}, "token"},
		{"a name that is not there", listed, Attacher{Listener: "unix:/all", UID: 0, Name: "other", Host: true}, ""},
		{"without sandboxes, anybody", empty, Attacher{Listener: "unix:/all", UID: 5}, Default},
		{"without sandboxes, a name that is not believed", empty, Attacher{Listener: "unix:/all", UID: 5, Name: "web"}, ""},
		{"without sandboxes, a name that is believed", empty, Attacher{Listener: "unix:/all", Name: "web", Host: true}, "web"},
	} {
		got, err := row.in.IdentifyAttacher(row.who)
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
	s := d.Attach(policy.Sandbox{Name: "web"})
	by := Peer{Listener: s.Listener()}
	is("there", by, "web")
	is("with a token that nobody asks for", with(by, "web", "x"), "web")
	is("with another's name", with(by, "other", "x"), "")
	is("by the listener of attachments itself", Peer{Listener: "unix:/web"}, "")
	is("with its name, elsewhere", with(Peer{Listener: "shared"}, "web", ""), "")
	other := d.Attach(policy.Sandbox{Name: "web"})
	if other.ID == s.ID {
		t.Error("two attachments are one")
	}
	if err := d.Set([]Entry{{Name: "other", Token: "t"}}); err != nil {
		t.Fatal(err)
	}
	is("removed from the configuration", by, "")
	if err := d.Set(nil); err != nil {
		t.Fatal(err)
	}
	is("with none listed", by, "web")
	d.Detach(s)
	is("gone", by, "")
	is("the other", Peer{Listener: other.Listener()}, "web")
	is("one that never was", Peer{Listener: attachmentPrefix + "99"}, "")
}

func TestWhoMayEnterBeforeAnythingIsHandedIn(t *testing.T) {
	listed := []Entry{{Name: "own", Enter: "unix:/own"}, {Name: "user", UIDs: []uint32{7}}, {Name: "both", Enter: "unix:/both", UIDs: []uint32{8}}}
	held := append([]Entry{{Name: "held", Docker: policy.Containers{Name: "x"}}}, listed...)
	for _, row := range []struct {
		says   string
		listed []Entry
		who    Attacher
		may    bool
	}{
		{"a user of a sandbox", listed, Attacher{Listener: "unix:/all", UID: 7}, true},
		{"a user of none", listed, Attacher{Listener: "unix:/all", UID: 9}, false},
		{"anybody at a socket of its own", listed, Attacher{Listener: "unix:/own", UID: 9}, true},
		{"the user at a socket that needs one", listed, Attacher{Listener: "unix:/both", UID: 8}, true},
		{"another user there", listed, Attacher{Listener: "unix:/both", UID: 7}, false},
		{"the host's own, who has to say its name first", listed, Attacher{Listener: "unix:/all", Host: true}, true},
		{"a user of none, who may be in a container that is one", held, Attacher{Listener: "unix:/all", UID: 9}, true},
		{"anybody where nobody is listed", nil, Attacher{Listener: "unix:/all", UID: 9}, true},
	} {
		d, err := NewDirectory(row.listed)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.MayAttach(row.who); (err == nil) != row.may {
			t.Errorf("%s: %v", row.says, err)
		}
	}
}
