package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/dns"
)

// TestTheProgramsHostsFile has files of hosts(5) as distributions, Docker and people write them.
func TestTheProgramsHostsFile(t *testing.T) {
	for _, row := range []struct{ says, machine, text, want string }{
		{"of Debian", "box", "127.0.0.1 localhost\n127.0.1.1 box.lan box\n::1 ip6-localhost\nff02::1 ip6-allnodes\n", "127.0.0.1 localhost\n127.0.1.1 box.lan box\n::1 ip6-localhost\nff02::1 ip6-allnodes\n::1 box\n"},
		{"of Docker", "c0ffee", "127.0.0.1 localhost\n::1 localhost\n172.17.0.2 c0ffee\n", "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 c0ffee\n::1 c0ffee\n"},
		{"with other machines", "box", "127.0.0.1 localhost box\n::1 box\n# lab\n93.184.216.35 a.ok.test a\n0.0.0.0 ads.test\n", "127.0.0.1 localhost box\n::1 box\n# lab\n0.0.0.0 ads.test\n"},
		{"that this user can write", "box", "127.0.0.1 localhost box\n::1 box\n93.184.216.35 a.ok.test\n", ""},
		{"that is right", "box", "127.0.0.1 localhost box\n::1 box\n", ""},
		{"without a name", "", "127.0.0.1 localhost\n", ""},
	} {
		if got := string(ownHosts(dns.ReadHosts(strings.NewReader(row.text)), row.machine, !strings.Contains(row.says, "can write"))); got != row.want {
			t.Errorf("%s: %q, want %q", row.says, got, row.want)
		}
	}
}

func TestANameOfAHostsFileThatDoesNotCount(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(path, []byte("192.0.2.7 Db.test db\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"db.test": true, "db": true, "other.test": false, "": false} {
		if got := isIgnoredHost(path, name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
	if isIgnoredHost(path+".missing", "db") {
		t.Error("a file that is not there has it")
	}
}
