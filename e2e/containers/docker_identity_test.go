package containers

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/internal/lab/engine"
	"github.com/egressd/egressd/record"
)

// containersPolicy knows sandboxes by what the engine says of containers. %s is the
// engine's socket.
const containersPolicy = `version: 1
listen: {proxy: ["0.0.0.0:3128", "[` + lab.GatewayIPv6 + `]:3129"], enter: ["unix:${XDG_RUNTIME_DIR}/run/enter.sock"]}
docker: {socket: "unix:%s"}
allow: ["*.allowed.test"]
sandboxes:
  - {name: web, docker: {name: web-1}}
  - {name: narrow, docker: {label: "team=narrow"}, allow: [b.allowed.test]}
  - {name: shop, docker: {compose: shop/api}, allow: [b.allowed.test]}
  - {name: twice, docker: {label: "also=twice"}}
  - {name: ci, token_file: ci.token}
  - {name: proven, docker: {label: "team=proven"}, token_file: web.token}
`

// identities starts egressd for containers that the engine runs in a network that only
// reaches the host.
func (w *dockerWorld) identities(t *testing.T) (d *world.Daemon, network string) {
	t.Helper()
	d = w.startBeside(t, fmt.Sprintf(containersPolicy, w.Socket))
	network = "inner-" + strings.ToLower(filepath.Base(d.Dir)) + strings.ToLower(filepath.Base(filepath.Dir(d.Dir)))[:8]
	w.docker(t, "network", "create", "--internal", "--subnet", "172.30.0.0/24", network)
	t.Cleanup(func() { w.docker(t, "network", "rm", network) })
	return d, network
}

// inner starts a container there.
func (w *dockerWorld) inner(t *testing.T, network string, args ...string) string {
	t.Helper()
	return w.contain(t, append([]string{"--network", network}, args...)...)
}

// through are ways out of a container by egressd's listener on the host's side of its
// network.
func (w *dockerWorld) through(t *testing.T, container string) waysOut {
	return w.ways(t, container, "http_proxy=http://172.30.0.1:3128")
}

// lastOf is the newest record about a host.
func lastOf(t *testing.T, d *world.Daemon, mark int, host string) record.Record {
	t.Helper()
	records, err := d.Log.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	var last record.Record
	for _, r := range records {
		if r.Dst != nil && r.Dst.Host == host && r.Kind == record.KindRequest {
			last = r
		}
	}
	return last
}

// TestContainersAreKnownByTheirEngine has several at a time, each with a policy of its own.
func TestContainersAreKnownByTheirEngine(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	d, network := w.identities(t)
	for _, row := range []struct {
		says, sandbox, reaches string
		args                   []string
	}{
		{"by its name", "web", "ab", []string{"--name", "web-1"}},
		{"by its label", "narrow", "b", []string{"--label", "team=narrow", "--name", "web-2"}},
		{"by its service", "shop", "b", []string{"--label", "com.docker.compose.project=shop", "--label", "com.docker.compose.service=api"}},
		{"by nothing", "", "", []string{"--name", "stranger"}},
		{"by what is two sandboxes'", "", "", []string{"--label", "team=narrow", "--label", "also=twice", "--name", "both"}},
		{"by what needs a token too", "", "", []string{"--label", "team=proven"}},
	} {
		t.Run(row.says, func(t *testing.T) {
			mark, _ := d.Log.Mark()
			c := w.inner(t, network, append(row.args, engine.Scratch)...)
			out := w.through(t, c)("get http://a.allowed.test/", "get http://b.allowed.test/")
			reached := ""
			for _, host := range []string{"a", "b"} {
				if strings.Contains(out, "get http://"+host+".allowed.test/: 200 OK origin") {
					reached += host
				}
			}
			r := lastOf(t, d, mark, "b.allowed.test")
			if reached != row.reaches || r.Sandbox != row.sandbox {
				t.Errorf("reached %q: %q; %+v", reached, out, r)
			}
			if r.Container == nil || !strings.HasPrefix(c, r.Container.ID) || len(r.Container.ID) != 12 || r.Container.Image != engine.Scratch || r.Container.Name == "" {
				t.Errorf("the record names %+v, not %s", r.Container, c)
			}
			if row.sandbox == "shop" && (r.Container.Project != "shop" || r.Container.Service != "api") {
				t.Errorf("the record names %+v", r.Container)
			}
		})
	}
	all, err := d.Log.Since(0)
	if err != nil || !slices.ContainsFunc(all, func(r record.Record) bool {
		return r.Kind == record.KindPolicy && r.Container != nil && r.Container.Name == "both" && strings.Contains(r.Note, "narrow") && strings.Contains(r.Note, "twice")
	}) {
		t.Errorf("the log does not name both: %v", err)
	}
}

// TestAContainerProvesNothingByWhatItSays has one show the tokens of others.
func TestAContainerProvesNothingByWhatItSays(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	_, network := w.identities(t)
	web := w.inner(t, network, "--name", "web-1", engine.Scratch)
	proven := w.inner(t, network, "--label", "team=proven", engine.Scratch)
	with := func(container, user, password string) string {
		return w.probe(t, container, fmt.Sprintf("via http://%s:%s@172.30.0.1:3128 http://b.allowed.test/", user, password))
	}
	for _, row := range []struct {
		says, container, user, password string
		passes                          bool
	}{
		{"another's token", web, "ci", "open-sesame", false},
		{"the token of a container", web, "proven", "another-secret", false},
		{"its own token", proven, "proven", "another-secret", true},
		{"a wrong one", proven, "proven", "open-sesame", false},
		{"a token that is nobody's container's", proven, "ci", "open-sesame", false},
		{"its own name", web, "web", "", true},
	} {
		if out := with(row.container, row.user, row.password); strings.Contains(out, "200 OK origin") != row.passes {
			t.Errorf("%s: %q", row.says, out)
		}
	}
}

// TestTheNextContainerOfAnAddressIsItself has one end whose address another gets at
// once, and asks while egressd may not have heard of it yet.
func TestTheNextContainerOfAnAddressIsItself(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	d, network := w.identities(t)
	const address = "172.30.0.77"
	for i := range 2 {
		first := w.docker(t, "run", "-d", "--network", network, "--ip", address, "--name", "web-1", engine.Scratch)
		if out := w.through(t, first)("get http://a.allowed.test/"); !strings.Contains(out, "200 OK origin") {
			t.Fatalf("%d: the first one: %q", i, out)
		}
		w.docker(t, "rm", "-f", first)
		mark, _ := d.Log.Mark()
		// The first thing that it does is to ask, before anybody can have said who it is.
		out := w.docker(t, "run", "--rm", "--network", network, "--ip", address, "--label", "team=narrow", "-e", "http_proxy=http://172.30.0.1:3128",
			engine.Scratch, "get http://a.allowed.test/", "get http://b.allowed.test/")
		if strings.Contains(out, "a.allowed.test/: 200") || !strings.Contains(out, "b.allowed.test/: 200 OK origin") {
			t.Errorf("%d: the next one: %q", i, out)
		}
		if r := lastOf(t, d, mark, "a.allowed.test"); r.Sandbox != "narrow" || r.Container == nil || r.Container.Name == "web-1" {
			t.Errorf("%d: recorded %+v of %+v", i, r, r.Container)
		}
	}
}

// TestFlowsEndWithTheirContainersPlace cuts what is open when a container leaves its
// network.
func TestFlowsEndWithTheirContainersPlace(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	d, network := w.identities(t)
	c := w.inner(t, network, "--name", "web-1", engine.Shell)
	slow := w.Command(t.Context(), "exec", "-e", "http_proxy=http://172.30.0.1:3128", c, "wget", "-q", "-O", "-", "http://a.allowed.test/slow")
	if err := slow.Start(); err != nil {
		t.Fatal(err)
	}
	if !world.Eventually(10*time.Second, func() bool { return lastOf(t, d, 0, "a.allowed.test").Sandbox == "web" }) {
		t.Fatal("there is no flow")
	}
	w.docker(t, "network", "disconnect", network, c)
	cut := world.Eventually(10*time.Second, func() bool {
		all, _ := d.Log.Since(0)
		for _, r := range all {
			if r.Kind == record.KindClose && r.Dst != nil && r.Dst.Host == "a.allowed.test" && r.Outcome == "cut" {
				return true
			}
		}
		return false
	})
	if !cut {
		t.Error("the flow was not cut")
	}
	slow.Process.Kill()
	slow.Wait()
}

// TestWithoutItsEngineAContainerIsNobody stops the engine, and has it come back.
func TestWithoutItsEngineAContainerIsNobody(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	d, network := w.identities(t)
	c := w.inner(t, network, "--name", "web-1", engine.Shell)
	pid := w.docker(t, "inspect", "-f", "{{.State.Pid}}", c)
	ask := func() string {
		return w.inNetwork(t, pid, "http_proxy=http://172.30.0.1:3128", "get http://a.allowed.test/", "via http://ci:open-sesame@172.30.0.1:3128 http://a.allowed.test/")
	}
	if out := ask(); strings.Count(out, "200 OK origin") != 1 {
		t.Fatalf("with its engine: %q", out)
	}
	if err := w.Kill(); err != nil {
		t.Fatal(err)
	}
	lost := world.Eventually(10*time.Second, func() bool { return strings.Contains(d.Output.String(), "containers are unknown, and thus refused") })
	if out := ask(); !lost || strings.Contains(out, "200 OK") {
		t.Errorf("without its engine: said so: %v; %q", lost, out)
	}
	if err := w.Restart(); err != nil {
		t.Fatal(err)
	}
	if !world.Eventually(20*time.Second, func() bool { return strings.Contains(d.Output.String(), "containers are known again") }) {
		t.Errorf("said %q", d.Output.String())
	}
	w.docker(t, "start", c)
	if out := w.through(t, c)("get http://a.allowed.test/"); !strings.Contains(out, "200 OK origin") {
		t.Errorf("with the engine again: %q", out)
	}
}

// inNetwork runs the probe in the network of a process, as somebody in its container
// would, and without asking the engine.
func (w *dockerWorld) inNetwork(t *testing.T, pid, variable string, ways ...string) string {
	t.Helper()
	cmd := w.Command(t.Context(), "unused")
	cmd.Path, cmd.Args = "/usr/bin/env", append([]string{"env", "-i", variable, "nsenter", "-t", pid, "-n", world.Probe.Path()}, ways...)
	cmd.Env = os.Environ()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// TestOneSocketKnowsContainers has containers attach their networks at one socket, which
// tells them apart by their engine.
func TestOneSocketKnowsContainers(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	d := w.startBeside(t, fmt.Sprintf(containersPolicy, w.Socket))
	const poses = "egressd.test/poses:1"
	w.docker(t, "commit", "--change", "LABEL team=narrow com.docker.compose.project=shop com.docker.compose.service=api", w.contain(t, engine.Shell), poses)
	for _, row := range []struct {
		says, sandbox string
		args          []string
	}{
		{"by its name", "web", []string{"--name", "web-1"}},
		{"by its label", "narrow", []string{"--label", "team=narrow"}},
		{"by its label, without a group of its own in sight", "narrow", []string{"--label", "team=narrow", "--cgroupns", "host"}},
		{"by nothing", "", []string{"--label", "team=other"}},
		{"by two", "", []string{"--label", "team=narrow", "--label", "also=twice"}},
		{"by labels of its image", "", []string{poses}},
		{"by one, where the image has another", "shop", []string{"--label", "com.docker.compose.config-hash=x", poses}},
	} {
		t.Run(row.says, func(t *testing.T) {
			args := append([]string{"--network", "none", "-v", world.Egressd.Path() + ":/egressd:ro", "-v", filepath.Join(d.Dir, "run") + ":/run/egressd:ro", "-e", "http_proxy=http://127.0.0.1:3128"}, row.args...)
			if !slices.Contains(row.args, poses) {
				args = append(args, engine.Shell)
			}
			c := w.contain(t, append(args, "/egressd", "enter", "--", engine.ProbePath, "get http://b.allowed.test/", "wait")...)
			if row.sandbox == "" {
				w.said(t, c, "unknown sandbox")
				return
			}
			w.said(t, c, "200 OK origin")
			if r := lastOf(t, d, 0, "b.allowed.test"); r.Sandbox != row.sandbox || r.Container == nil || !strings.HasPrefix(c, r.Container.ID) {
				t.Errorf("recorded %+v of %+v", r, r.Container)
			}
		})
	}
}
