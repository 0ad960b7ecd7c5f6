package daemon

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/policy/file"
)

// aMachine is one whose files are in a folder of the test, with the system's name servers asked.
func aMachine(t *testing.T, servers, hosts string) (r *resolver, write func(name, text string)) {
	t.Helper()
	dir := t.TempDir()
	write = func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, "new"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	write("resolv.conf", servers)
	write("hosts", hosts)
	c := &config.Config{File: &file.File{}}
	c.File.Upstream.DNS = []string{"system"}
	m := newMachineAt(c, filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "hosts"))
	if len(m.table) > 0 {
		t.Error("a hosts file that this user can write counts")
	}
	m.servers.fixed, m.hosts.fixed = false, false // of another user
	m.readHosts()
	r = &resolver{machine: m}
	f, err := newForwarder(c, m.servers.path)
	if err != nil {
		t.Fatal(err)
	}
	r.forwarder.Store(f)
	t.Cleanup(r.close)
	return r, write
}

func (r *resolver) lookAgain() { r.machine.looked = time.Time{} }

// TestTheMachinesNameServersAreFollowed has resolv.conf replaced while egressd runs, as on a change of the network.
func TestTheMachinesNameServersAreFollowed(t *testing.T) {
	r, write := aMachine(t, "nameserver 192.0.2.1\n", "")
	asked := func() []netip.AddrPort { r.lookAgain(); return r.now().Upstreams }
	for _, row := range []struct{ text, want string }{
		{"nameserver 192.0.2.1\n", "192.0.2.1:53"},
		{"nameserver 192.0.2.2\n", "192.0.2.2:53"},
		{"", "192.0.2.2:53"}, // half written
		{"nameserver x\n", "192.0.2.2:53"},
		{"nameserver 192.0.2.3\n", "192.0.2.3:53"},
	} {
		write("resolv.conf", row.text)
		if got := asked(); len(got) != 1 || got[0].String() != row.want {
			t.Errorf("%q: asks %v, want %s", row.text, got, row.want)
		}
	}
	r.machine.servers.fixed = true
	write("resolv.conf", "nameserver 192.0.2.4\n")
	if got := asked(); got[0].String() != "192.0.2.3:53" {
		t.Errorf("a file that programs can write is followed: %v", got)
	}
}

// TestAMachineWithoutNameServers begins without a network: the C library asks a server on the machine itself then.
func TestAMachineWithoutNameServers(t *testing.T) {
	r, write := aMachine(t, "# no network\n", "")
	if got := r.now().Upstreams; len(got) != 1 || got[0] != localServer {
		t.Errorf("asks %v", got)
	}
	write("resolv.conf", "nameserver 192.0.2.2\n")
	r.lookAgain()
	if got := r.now().Upstreams; len(got) != 1 || got[0].String() != "192.0.2.2:53" {
		t.Errorf("with a network: asks %v", got)
	}
	if f, err := newForwarder(r.machine.config, filepath.Join(t.TempDir(), "none")); err != nil || f.Upstreams[0] != localServer {
		t.Errorf("without a file: %v", err)
	}
}

// TestTheHostsFileCounts has names in it, which no name server is asked for.
func TestTheHostsFileCounts(t *testing.T) {
	r, write := aMachine(t, "nameserver 192.0.2.1\n", "93.184.216.35 a.ok.test\n10.0.0.5 private.ok.test\n")
	want := []netip.Addr{netip.MustParseAddr("93.184.216.35")}
	if got, _, ok := r.Cached("a.ok.test"); !ok || !slices.Equal(got, want) || !r.IsLocal("a.ok.test") {
		t.Errorf("%v, %t", got, ok)
	}
	if got, _, err := r.Lookup(context.Background(), "a.ok.test"); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if _, _, ok := r.Cached("b.ok.test"); ok || r.IsLocal("b.ok.test") {
		t.Error("a name that is not in it")
	}
	write("hosts", "93.184.216.36 b.ok.test\n")
	r.lookAgain()
	if got, _, ok := r.Cached("b.ok.test"); !ok || got[0].String() != "93.184.216.36" || r.IsLocal("a.ok.test") {
		t.Errorf("after a change: %v, %t", got, ok)
	}
	if own := newMachineFile(r.machine.hosts.path); !own.fixed {
		t.Error("a file that this user can write would be followed")
	}
}

// TestTheMachinesSearchListIsFollowed has resolv.conf replaced.
func TestTheMachinesSearchListIsFollowed(t *testing.T) {
	r, write := aMachine(t, "search one.test\nnameserver 192.0.2.1\n", "")
	for _, row := range []struct{ text, want string }{
		{"", "one.test"}, // as at the start
		{"nameserver 192.0.2.1\nsearch Two.test.  three.test\n", "two.test three.test"},
		{"nameserver 192.0.2.1\nsearch two.test\ndomain four.test\n", "four.test"}, // the last line counts
		{"nameserver 192.0.2.1\nsearch . 1.2.3.4 a..b\n", ""},
		{"nameserver 192.0.2.1\n", ""},
	} {
		if row.text != "" {
			write("resolv.conf", row.text)
		}
		r.lookAgain()
		if got := strings.Join(r.Search(), " "); got != row.want {
			t.Errorf("%q: %q, want %q", row.text, got, row.want)
		}
	}
	r.machine.servers.fixed = true
	write("resolv.conf", "search five.test\nnameserver 192.0.2.1\n")
	if r.lookAgain(); len(r.Search()) != 0 {
		t.Errorf("a file that others can change counts: %q", r.Search())
	}
}
