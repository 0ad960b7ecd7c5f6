package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/internal/lab/engine"
)

// dockerPolicy is one for the host of an engine.
const dockerPolicy = `version: 1
listen: {proxy: ["` + lab.GatewayIPv4 + `:3128", "[` + lab.GatewayIPv6 + `]:3128"]}
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
	"direct http://" + evilIPv4 + "/", "direct http://[2606:2800:220:1::2]/",
	"direct http://169.254.169.254/latest/meta-data/", "direct http://[fd00:ec2::254]/",
	fmt.Sprintf("direct http://%s:%d/", lab.GatewayIPv4, openService), fmt.Sprintf("direct http://[%s]:%d/", lab.GatewayIPv6, openService),
	fmt.Sprintf("direct http://172.17.0.1:%d/", openService), fmt.Sprintf("direct http://127.0.0.1:%d/", openService),
	"dns " + resolver + " secret.evil.test", "udp " + evilIPv4 + ":9999",
}

// openWays are those that have to work where nobody holds a container, else the tests of
// closed ones would show nothing.
var openWays = []string{
	"direct http://" + evilIPv4 + "/", fmt.Sprintf("direct http://%s:%d/", lab.GatewayIPv4, openService), "dns " + resolver + " a.allowed.test",
}

// gotOut are the lines of a probe of a way that has led somewhere. An address that stands
// for a name is egressd's answer, whoever was asked.
func gotOut(printed string) (lines []string) {
	for line := range strings.Lines(printed) {
		if strings.Contains(line, ": 200 OK origin") || strings.Contains(line, ": answered") && !strings.Contains(line, "answered [100.127.") {
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
func (d *daemon) holds(t *testing.T, sandbox string, out waysOut) {
	t.Helper()
	mark, err := d.log.mark()
	if err != nil {
		t.Fatal(err)
	}
	if printed := out("get http://b.allowed.test/far"); !strings.Contains(printed, "200 OK origin "+allowedIPv4) || !strings.Contains(printed, "GET /far") {
		t.Errorf("what is allowed does not work: %q", printed)
	}
	if printed := out("get http://evil.test/"); !strings.Contains(printed, "403 Blocked by egressd") || !strings.Contains(printed, "default-deny") {
		t.Errorf("what is not allowed is answered %q", printed)
	}
	records, err := d.log.since(mark)
	if err != nil || denials(records, sandbox, "evil.test") != 1 {
		t.Errorf("%v, %+v", err, records)
	}
	d.keepsIn(t, closedWays, out)
}

// keepsIn has a container try ways out of which none may lead anywhere, nor have
// anything sent.
func (d *daemon) keepsIn(t *testing.T, ways []string, out waysOut) {
	t.Helper()
	wire, err := d.world.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	asked := d.world.zone.mark()
	printed := out(ways...)
	if got := gotOut(printed); len(got) > 0 {
		t.Errorf("got out: %q", got)
	}
	if n := strings.Count(printed, "\n") + 1; n != len(ways) {
		t.Errorf("%d ways of %d were tried: %q", n, len(ways), printed)
	}
	if names := d.world.zone.since(asked); len(names) > 0 {
		t.Errorf("asked for %q", names)
	}
	if packets, err := d.world.Wire.Since(wire); err != nil || len(packets) > 0 {
		t.Errorf("sent %v, %v", packets, err)
	}
}

// killed kills egressd, after which nothing gets out.
func (d *daemon) killed(t *testing.T, out waysOut) {
	t.Helper()
	d.kill()
	d.keepsIn(t, append([]string{"get http://b.allowed.test/", "dns 127.0.0.1:53 b.allowed.test"}, closedWays...), out)
}

// startBeside runs egressd on the host of the engine.
func (w *dockerWorld) startBeside(t *testing.T, policy string) *daemon {
	t.Helper()
	d := newDaemonIn(t, w.world, policy)
	d.serveAnew(t)
	t.Cleanup(d.kill)
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
			args := append([]string{"--network", "none", "-v", Egressd.Path() + ":/egressd:ro", "-v", filepath.Join(d.dir, row.sandbox) + ":/run/egressd"}, row.image...)
			if row.sandbox == "web" {
				args = append(args, "/egressd")
			}
			c := w.contain(t, append(args, "enter", "--", engine.ProbePath, "wait")...)
			w.said(t, c, "sandbox "+row.sandbox+" · "+row.mode)
			out := w.ways(t, c, row.variables...)
			d.holds(t, row.sandbox, out)
			d.killed(t, out)
		})
	}
}

// said waits until a container has said something.
func (w *dockerWorld) said(t *testing.T, container, what string) {
	t.Helper()
	var said []byte
	ok := eventually(20*time.Second, func() bool {
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
	d.keepsIn(t, closedWays, out)
	if e := d.attach(t, "web", "--docker", w.Socket, "attached"); e.code != 0 || !strings.Contains(e.talk, "is sandbox web · transparent") {
		t.Fatalf("exit %d, %q", e.code, e.talk)
	}
	d.holds(t, "web", out)
	bridged := w.contain(t, engine.Scratch)
	if e := d.attach(t, "web", "--docker", w.Socket, bridged); e.code != 1 || !strings.Contains(e.talk, "the network has the interface eth0") {
		t.Errorf("to one with a network of Docker's: exit %d, %q", e.code, e.talk)
	}
	d.killed(t, out)
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
	cmd := d.command(t.Context(), nil, "attach", "--follow", "--label", "held=yes", "--docker", w.Socket, "--socket", filepath.Join(d.dir, "web", "enter.sock"))
	said := new(talk)
	cmd.Stderr = said
	if err := d.world.Gateway.Start(cmd); err != nil {
		t.Fatal(err)
	}
	attached := func(container string, times int) {
		t.Helper()
		want := "(" + container[:12] + ") is sandbox web · transparent"
		if !eventually(30*time.Second, func() bool { return strings.Count(said.String(), want) == times }) {
			t.Fatalf("said %q, and not %d times %s", said.String(), times, want)
		}
	}
	attached(before, 1)
	d.holds(t, "web", w.ways(t, before))
	other := w.contain(t, "--label", "held=no", "--network", "none", engine.Scratch)
	bridged := w.contain(t, "--label", "held=yes", "--name", "bridged", engine.Scratch)
	after := w.contain(t, "--label", "held=yes", "--network", "none", engine.Scratch)
	attached(after, 1)
	d.holds(t, "web", w.ways(t, after))
	if !eventually(10*time.Second, func() bool { return strings.Contains(said.String(), "bridged is not held") }) || strings.Contains(said.String(), other[:12]) {
		t.Errorf("of %s and %s it said %q", bridged, other, said.String())
	}
	d.killed(t, w.ways(t, after))
	d.serveAnew(t)
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
	d.holds(t, "web", w.ways(t, again)) // what is held stays so
}
