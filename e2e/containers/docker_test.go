package containers

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/internal/lab/engine"
)

// dockerPolicy is one for the host of an engine.
const dockerPolicy = `version: 1
listen: {open_to_network: true, proxy: ["` + lab.GatewayIPv4 + `:3128", "[` + lab.GatewayIPv6 + `]:3128"]}
allow: ["*.allowed.test"]
sandboxes:
  - {name: web, enter: "unix:${XDG_RUNTIME_DIR}/web/enter.sock"}
  - {name: narrow, enter: "unix:${XDG_RUNTIME_DIR}/narrow/enter.sock", uid: [65532], allow: [b.allowed.test]}
`

// openService is where the host of the engine serves whoever comes, on all its
// addresses.
const openService = 9999

// serveOnHost starts that service.
func (w *dockerWorld) serveOnHost() error {
	l, err := w.Gateway.Listen("tcp", fmt.Sprintf("[::]:%d", openService)) // and all of IPv4
	if err != nil {
		return err
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "origin of the host")
	}))
	return nil
}

// A waysOut runs the probe in a container with a way out for each argument, and
// returns what came of each, a line each.
type waysOut func(ways ...string) string

// closedWays lead out past egressd, or to what no policy allows.
var closedWays = []string{
	"direct http://" + world.EvilIPv4 + "/", "direct http://[2606:2800:220:1::2]/",
	"direct http://169.254.169.254/latest/meta-data/", "direct http://[fd00:ec2::254]/",
	fmt.Sprintf("direct http://%s:%d/", lab.GatewayIPv4, openService), fmt.Sprintf("direct http://[%s]:%d/", lab.GatewayIPv6, openService),
	fmt.Sprintf("direct http://172.17.0.1:%d/", openService), fmt.Sprintf("direct http://127.0.0.1:%d/", openService),
	"dns " + world.Resolver + " secret.evil.test", "udp " + world.EvilIPv4 + ":9999",
}

// openWays are those that have to work where nobody holds a container, else the tests of
// closed ones would show nothing.
var openWays = []string{
	"direct http://" + world.EvilIPv4 + "/", fmt.Sprintf("direct http://%s:%d/", lab.GatewayIPv4, openService), "dns " + world.Resolver + " a.allowed.test",
}

// gotOut are the lines of a probe of a way that has led somewhere. An address that stands
// for a name is egressd's answer, whoever was asked.
func gotOut(printed string) (lines []string) {
	for line := range strings.Lines(printed) {
		if strings.Contains(line, ": 200 OK origin") || strings.Contains(line, ": answered") && !strings.Contains(line, "answered [28.255.") {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestAContainerOfDockersOwnGetsOut shows that there are ways out to be closed.
func TestAContainerOfDockersOwnGetsOut(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	c := w.contain(t, engine.Shell)
	if out := w.probe(t, c, openWays...); len(gotOut(out)) != len(openWays) {
		t.Errorf("printed %q", out)
	}
}

// holds has a container try all ways out: it reaches what is allowed to a sandbox, and
// nothing else. What was sent is compared with what egressd may send.
func holds(t *testing.T, d *world.Daemon, sandbox string, out waysOut) {
	t.Helper()
	mark, err := d.Log.Mark()
	if err != nil {
		t.Fatal(err)
	}
	if printed := out("get http://b.allowed.test/far"); !strings.Contains(printed, "200 OK origin "+world.AllowedIPv4) || !strings.Contains(printed, "GET /far") {
		t.Errorf("what is allowed does not work: %q", printed)
	}
	if printed := out("get http://evil.test/"); !strings.Contains(printed, "403 Blocked by egressd") || !strings.Contains(printed, "default-deny") {
		t.Errorf("what is not allowed is answered %q", printed)
	}
	records, err := d.Log.Since(mark)
	if err != nil || world.CountDenials(records, sandbox, "evil.test") != 1 {
		t.Errorf("%v, %+v", err, records)
	}
	keepsIn(t, d, closedWays, out)
}

// keepsIn has a container try ways out of which none may lead anywhere, nor have
// anything sent.
func keepsIn(t *testing.T, d *world.Daemon, ways []string, out waysOut) {
	t.Helper()
	wire, err := d.World.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	asked := d.World.Zone.Mark()
	printed := out(ways...)
	if got := gotOut(printed); len(got) > 0 {
		t.Errorf("got out: %q", got)
	}
	if n := strings.Count(printed, "\n") + 1; n != len(ways) {
		t.Errorf("%d ways of %d were tried: %q", n, len(ways), printed)
	}
	if names := d.World.Zone.Since(asked); len(names) > 0 {
		t.Errorf("asked for %q", names)
	}
	if packets, err := d.World.Wire.Since(wire); err != nil || len(packets) > 0 {
		t.Errorf("sent %v, %v", packets, err)
	}
}

// killed kills egressd, after which nothing gets out.
func killed(t *testing.T, d *world.Daemon, out waysOut) {
	t.Helper()
	d.Kill()
	keepsIn(t, d, append([]string{"get http://b.allowed.test/", "dns 127.0.0.1:53 b.allowed.test"}, closedWays...), out)
}

// startBeside runs egressd on the host of the engine.
func (w *dockerWorld) startBeside(t *testing.T, policy string) *world.Daemon {
	t.Helper()
	d := world.NewDaemonIn(t, w.World, policy)
	serveAnew(t, d)
	t.Cleanup(d.Kill)
	return d
}

// ways are those out of a container that runs, with variables as VARIABLE=value.
func (w *dockerWorld) ways(t *testing.T, container string, variables ...string) waysOut {
	args := []string{"exec"}
	for _, v := range variables {
		args = append(args, "-e", v)
	}
	return func(ways ...string) string {
		t.Helper()
		return w.docker(t, append(append(args, container, engine.ProbePath), ways...)...)
	}
}

// TestEnterInAContainer hands the network in from inside, as each of those does that a
// container can be.
func TestEnterInAContainer(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	for _, row := range []struct {
		says, sandbox, mode string
		image               []string
		variables           []string
	}{
		{"as Docker's root", "web", "proxy", []string{engine.Shell}, []string{"http_proxy=http://127.0.0.1:3128"}},
		{"as who may administer it", "web", "transparent", []string{"--cap-add", "NET_ADMIN", engine.Shell}, nil},
		{"as a user, of an image with nothing else", "narrow", "proxy", []string{"--read-only", "--cap-drop", "ALL", "--entrypoint", "/egressd", engine.Scratch}, []string{"http_proxy=http://127.0.0.1:3128"}},
	} {
		t.Run(row.says, func(t *testing.T) {
			d := w.startBeside(t, dockerPolicy)
			args := append([]string{"--network", "none", "-v", world.Egressd.Path() + ":/egressd:ro", "-v", filepath.Join(d.Dir, row.sandbox) + ":/run/egressd:ro"}, row.image...)
			if row.sandbox == "web" {
				args = append(args, "/egressd")
			}
			c := w.contain(t, append(args, "enter", "--", engine.ProbePath, "wait")...)
			w.said(t, c, "sandbox "+row.sandbox+" · "+row.mode)
			out := w.ways(t, c, row.variables...)
			holds(t, d, row.sandbox, out)
			killed(t, d, out)
		})
	}
}

// said waits until a container has said something.
func (w *dockerWorld) said(t *testing.T, container, what string) {
	t.Helper()
	var said []byte
	ok := world.Eventually(20*time.Second, func() bool {
		said, _ = w.Command(t.Context(), "logs", container).CombinedOutput()
		return strings.Contains(string(said), what)
	})
	if !ok {
		t.Fatalf("it said %q", said)
	}
}

// TestAttachToAContainer hands the network in from outside.
func TestAttachToAContainer(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	d := w.startBeside(t, dockerPolicy)
	c := w.contain(t, "--name", "attached", "--network", "none", "--read-only", "--cap-drop", "ALL", engine.Scratch)
	out := w.ways(t, c)
	keepsIn(t, d, closedWays, out)
	if e := d.Attach(t, "web", "--docker", w.Socket, "attached"); e.Code != 0 || !strings.Contains(e.Talk, "transparent") {
		t.Fatalf("exit %d, %q", e.Code, e.Talk)
	}
	holds(t, d, "web", out)
	bridged := w.contain(t, engine.Scratch)
	if e := d.Attach(t, "web", "--docker", w.Socket, bridged); e.Code != 1 || !strings.Contains(e.Talk, "--network") {
		t.Errorf("to one with a network of Docker's: exit %d, %q", e.Code, e.Talk)
	}
	killed(t, d, out)
}

// TestAttachFollows has containers with a label be attached to that run already and that
// start later, and again after egressd was started anew, and the engine too.
func TestAttachFollows(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	d := w.startBeside(t, dockerPolicy)
	before := w.contain(t, "--label", "held=yes", "--network", "none", engine.Scratch)
	cmd := d.Command(t.Context(), nil, "attach", "--follow", "--label", "held=yes", "--docker", w.Socket, "--socket", filepath.Join(d.Dir, "web", "enter.sock"))
	said := new(world.Output)
	cmd.Stderr = said
	if err := d.World.Gateway.Start(cmd); err != nil {
		t.Fatal(err)
	}
	attached := func(container string, times int) {
		t.Helper()
		want := "(" + container[:12] + ") is sandbox web · transparent"
		if !world.Eventually(30*time.Second, func() bool { return strings.Count(said.String(), want) == times }) {
			t.Fatalf("said %q, and not %d times %s", said.String(), times, want)
		}
	}
	attached(before, 1)
	holds(t, d, "web", w.ways(t, before))
	other := w.contain(t, "--label", "held=no", "--network", "none", engine.Scratch)
	bridged := w.contain(t, "--label", "held=yes", "--name", "bridged", engine.Scratch)
	after := w.contain(t, "--label", "held=yes", "--network", "none", engine.Scratch)
	attached(after, 1)
	holds(t, d, "web", w.ways(t, after))
	if !world.Eventually(10*time.Second, func() bool { return strings.Contains(said.String(), "bridged is not held") }) || strings.Contains(said.String(), other[:12]) {
		t.Errorf("of %s and %s it said %q", bridged, other, said.String())
	}
	killed(t, d, w.ways(t, after))
	serveAnew(t, d)
	attached(before, 2)
	attached(after, 2)
	if err := w.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := w.Restart(); err != nil {
		t.Fatal(err)
	}
	again := w.contain(t, "--label", "held=yes", "--network", "none", engine.Scratch)
	attached(again, 1)
	cmd.Process.Signal(os.Interrupt)
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ends with %v, having said %q", err, said.String())
	}
	holds(t, d, "web", w.ways(t, again)) // what is held stays so
}
