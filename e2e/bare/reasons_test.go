package bare

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

var update = flag.Bool("update", false, "rewrite the list on the page about run")

// A reason says why a program comes to something else under run than without.
type reason struct{ key, text string }

// reasons are in the order of the page.
var reasons = []reason{
	{"privileges", "The program gains no privilege: `sudo` and `crontab` do not work. Root has few: `mount` is refused, and `unshare -r`."},
	{"ids", "An ordinary user has one group inside. Giving a file to another, also by an ACL, fails with `EINVAL`."},
	{"owners", "Files of other users, root among them, look as if of `nobody`."},
	{"groups", "Other groups of the user count, but have the number 65534."},
	{"pids", "The program sees no process outside, and its parent has the pid 0. So has its process group: egressd gives the terminal back to it for `bash -i` and `zsh -i`, a moment after they end."},
	{"signals", "Of the signals that the caller ignores, only `HUP`, `INT`, `TSTP`, `TTIN` and `TTOU` stay ignored. Go replaces the others before egressd begins."},
	{"streams", "A standard stream that is closed at the start is `/dev/null`. One that is a folder is refused."},
	{"limits", "Half as many signals can be queued. A limit of another process, also of a child, cannot be set."},
	{"calls", "`io_uring`, kernel keys and `TIOCSTI` are refused."},
	{"sockets", "Sockets other than TCP, UDP, Unix and route netlink are refused."},
	{"environment", "Variables name the file of authorities: `SSL_CERT_FILE`, `NODE_EXTRA_CA_CERTS`, `REQUESTS_CA_BUNDLE`, `DENO_CERT`. That file, and the key store of Java, have one authority more. `--no-ca` leaves that out. Proxy variables are gone. `FAKEROOTDONTTRYCHOWN` is set for an ordinary user."},
	{"hosts", "`/etc/hosts` has loopback lines alone, and the machine's name is at `::1`, too."},
	{"network", "There are `lo` and `eth0`, and no interface of the machine."},
	{"addresses", "A name's address is one that stands for it in this sandbox, by IPv4 and by IPv6."},
	{"names", "A name that does not exist has an address, too. The connection fails, with a page if it is HTTP."},
	{"handshakes", "A connection that the server refuses is accepted first, and then reset. A check that connects and sends nothing succeeds."},
	{"icmp", "`ping` does not work, not even to loopback."},
	{"multicast", "Datagrams to groups are refused, also on loopback."},
	{"mounts", "The table of mounts has what hides files and devices, and file systems have `nodev`."},
	{"devices", "Devices are closed, also for root, but for those [above](#files)."},
	{"own", "egressd's own files are hidden, or can only be read. Their folders are made, and the home above them if it is missing."},
	{"sandboxes", "Sandboxes that mount something (bubblewrap) need `--nested` or `--fs`."},
	{"nested", "`egressd run` inside `egressd run` is refused."},
	{"fs", "`--fs`: what is changed outside of the working directory fails or is lost, renames out of it fail with `EXDEV`, and `gio trash` refuses. Git cannot change the settings of a repository elsewhere."},
	{"left", "What the program leaves behind gets SIGTERM. `--wait` waits for it."},
}

// Where the list stands on the page.
const (
	page  = "docs/explanation/what-run-does.md"
	title = "## Other than without egressd\n"
	lead  = "\nThe tests run %d lines of shell with and without egressd, in a terminal and without, as a user and as root. The exit status, the\noutput and the files are the same for %d of them. The others have these differences, with the number of lines:\n\n"
)

// TestThePageHasEachReason compares the list with the rows and with the page.
func TestThePageHasEachReason(t *testing.T) {
	used := map[string][]string{}
	rows := 0
	for _, table := range tables {
		for _, r := range table.rows {
			rows++
			used[r.differs] = append(used[r.differs], r.name)
			if r.differs != "" && !slices.ContainsFunc(reasons, func(known reason) bool { return known.key == r.differs }) {
				t.Errorf("%s: there is no reason %q", r.name, r.differs)
			}
		}
	}
	var list strings.Builder
	fmt.Fprintf(&list, title+lead, rows, len(used[""]))
	for _, r := range reasons {
		if len(used[r.key]) == 0 {
			t.Errorf("no row has the reason %q", r.key)
		}
		fmt.Fprintf(&list, "- **%s** (%d): %s\n", r.key, len(used[r.key]), r.text)
		t.Logf("%s: %s", r.key, strings.Join(used[r.key], "; "))
	}
	list.WriteString("\n")
	path := world.Source(page)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), title)
	_, after, more := strings.Cut(rest, "\n## ")
	if !found || !more {
		t.Fatalf("%s needs %q, with a section after it", page, title)
	}
	whole := before + list.String() + "## " + after
	if *update {
		if err := os.WriteFile(path, []byte(whole), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if whole != string(text) {
		t.Errorf("the list of %s is another one than in reasons_test.go; go test ./e2e/bare -run %s -update writes it", page, t.Name())
	}
}
