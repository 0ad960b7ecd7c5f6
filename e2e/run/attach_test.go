package run

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
)

// A contained process is one in a network of its own, as that of a container is that
// nobody has attached to yet.
type contained struct {
	cmd *exec.Cmd
	d   *world.Daemon
}

func contain(t *testing.T, d *world.Daemon) *contained { return containAs(t, d, "-n") }

// containAs gives the process further namespaces of its own, by flags of unshare.
func containAs(t *testing.T, d *world.Daemon, flags ...string) *contained {
	t.Helper()
	c := &contained{exec.Command("unshare", append(flags, "sleep", "1000")...), d}
	if err := d.World.Gateway.Start(c.cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.end)
	own, _ := os.Readlink("/proc/self/ns/net")
	gateway, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", d.Cmd.Process.Pid))
	apart := world.Eventually(5*time.Second, func() bool {
		is, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", c.cmd.Process.Pid))
		return err == nil && is != own && is != gateway
	})
	if !apart {
		t.Fatal("the process has no network of its own")
	}
	return c
}

func (c *contained) end() {
	c.cmd.Process.Kill()
	c.cmd.Wait()
}

func (c *contained) pid() string { return fmt.Sprint(c.cmd.Process.Pid) }

// inside runs a script in the network of the process, as docker exec does.
func (c *contained) inside(t *testing.T, script string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "nsenter", "-t", c.pid(), "-n", "sh", "-c", script)
	cmd.Dir = c.d.Dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := c.d.World.Gateway.Start(cmd); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	return out.String()
}

func TestAttach(t *testing.T) {
	d := world.Start(t, enterPolicy)
	c := contain(t, d)
	if out := c.inside(t, `curl -sS -m3 http://a.allowed.test/`); strings.Contains(out, "origin") {
		t.Fatalf("there is a network before anybody attached: %q", out)
	}
	e := d.Attach(t, "web", c.pid())
	if e.Code != 0 || !strings.Contains(e.Talk, "transparent") {
		t.Fatalf("exit %d, %q", e.Code, e.Talk)
	}
	if out := c.inside(t, `curl -sS -m9 http://a.allowed.test/; dig +short @127.0.0.11 a.allowed.test; dig +short @127.0.0.1 +tcp a.allowed.test; dig +short @8.8.8.8 evil.test`); !strings.Contains(out, "origin") || strings.Count(out, "28.255.") != 3 {
		t.Errorf("printed %q", out)
	}
	wire, err := d.World.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	mark, _ := d.Log.Mark()
	if out := c.inside(t, `curl -sS -m9 http://evil.test/; curl -sS -m9 http://10.99.0.2:3128/; ip link add x type veth peer name y; ip addr add 1.2.3.4/32 dev x; ip link set x up; nft flush ruleset; curl -sS -m3 http://151.101.1.69/`); !strings.Contains(out, "default-deny") {
		t.Errorf("printed %q", out)
	}
	records, err := d.Log.Since(mark)
	if err != nil || world.CountDenials(records, "web", "evil.test") != 1 {
		t.Errorf("%v, %+v", err, records)
	}
	if packets, err := d.World.Wire.Since(wire); err != nil || len(packets) > 0 {
		t.Errorf("sent %v, %v", packets, err)
	}
	if e := d.Attach(t, "web", c.pid()); e.Code != 1 || !strings.Contains(e.Talk, "interface x") {
		t.Errorf("to a network with an interface: exit %d, %q", e.Code, e.Talk)
	}
	c.inside(t, "ip link del x")
	if e := d.Attach(t, "web", c.pid()); e.Code != 1 {
		t.Errorf("a second time: exit %d, %q", e.Code, e.Talk)
	}
	c.end()
	ended := world.Eventually(5*time.Second, func() bool {
		all, _ := d.Log.Since(mark)
		last := all[len(all)-1]
		return last.Kind == "stop" && last.Sandbox == "web"
	})
	if !ended {
		t.Error("the end of the process is not recorded")
	}
}

func TestAttachRefusals(t *testing.T) {
	d := world.Start(t, enterPolicy)
	for _, row := range []struct {
		says string
		argv []string
		code int
		talk string
	}{
		{"the network of the host", []string{fmt.Sprint(d.Cmd.Process.Pid)}, 1, ""},
		{"no process", []string{"999999999"}, 1, "999999999"},
		{"no container, and no Docker", []string{"--docker", d.Dir + "/none", "web"}, 1, d.Dir + "/none"},
		{"what is neither", []string{"../../etc"}, 1, "../../etc"},
		{"nothing", nil, 2, "container"},
	} {
		t.Run(row.says, func(t *testing.T) {
			if e := d.Attach(t, "web", row.argv...); e.Code != row.code || !strings.Contains(e.Talk, row.talk) || !strings.Contains(e.Talk, "egressd: hint: ") {
				t.Errorf("exit %d, %q", e.Code, e.Talk)
			}
		})
	}
}

// TestAttachContainer asks what answers as Docker does, and is not believed.
func TestAttachContainer(t *testing.T) {
	d := world.Start(t, enterPolicy)
	c := contain(t, d)
	path := filepath.Join(d.Dir, "docker.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/containers/box/json":
			fmt.Fprintf(w, `{"Id":"0123456789ab","State":{"Status":"running","Pid":%s},"HostConfig":{"NetworkMode":"none"}}`, c.pid())
		case "/containers/json", "/networks":
			fmt.Fprint(w, "[]")
		case "/containers/stopped/json":
			fmt.Fprint(w, `{"State":{"Status":"exited","Pid":0}}`)
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"message":"No such container"}`)
		}
	})}
	go server.Serve(l)
	defer server.Close()
	for name, talk := range map[string]string{"stopped": "it is not running, but exited", "other": "there is none"} {
		if e := d.Attach(t, "web", "--docker", path, name); e.Code != 1 || !strings.Contains(e.Talk, talk) {
			t.Errorf("%s: exit %d, %q", name, e.Code, e.Talk)
		}
	}
	// Its files and processes are this machine's, whatever the engine says.
	if e := d.Attach(t, "run", "--docker", path, "--name", "named", "box"); e.Code != 1 || !strings.Contains(e.Talk, "--pid host") {
		t.Errorf("exit %d, %q", e.Code, e.Talk)
	}
	if e := d.Attach(t, "run", "--name", "named", "--json", c.pid()); e.Code != 0 || !strings.Contains(e.Out, `"sandbox":"named"`) {
		t.Fatalf("exit %d, %q, %q", e.Code, e.Out, e.Talk)
	}
	if out := c.inside(t, `curl -sS -m9 http://a.allowed.test/`); !strings.Contains(out, "origin") {
		t.Errorf("printed %q", out)
	}
}

// TestAKilledDaemonTakesTheNetworksWithIt, and one that is started anew has none until
// they are attached again.
func TestAKilledDaemonTakesTheNetworksWithIt(t *testing.T) {
	d := world.NewDaemon(t, enterPolicy)
	serve := func() {
		d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	}
	serve()
	c := contain(t, d)
	if e := d.Attach(t, "web", c.pid()); e.Code != 0 {
		t.Fatalf("exit %d, %q", e.Code, e.Talk)
	}
	if out := c.inside(t, `curl -sS -m9 http://a.allowed.test/`); !strings.Contains(out, "origin") {
		t.Fatalf("printed %q", out)
	}
	wire, err := d.World.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	const tries = `curl -sS -m3 http://a.allowed.test/; curl -sS -m3 http://93.184.216.34/; echo x | socat -t1 - UDP:93.184.216.34:99; dig +time=1 +tries=1 @8.8.8.8 a.allowed.test`
	d.Kill()
	if out := c.inside(t, tries); strings.Contains(out, "origin") {
		t.Errorf("without a daemon: %q", out)
	}
	serve()
	defer d.Stop(t)
	if out := c.inside(t, tries); strings.Contains(out, "origin") {
		t.Errorf("with a new daemon: %q", out)
	}
	packets, err := d.World.Wire.Since(wire)
	if err != nil || len(packets) > 0 {
		t.Errorf("sent %v, %v", packets, err)
	}
	if e := d.Attach(t, "web", c.pid()); e.Code != 0 {
		t.Fatalf("exit %d, %q", e.Code, e.Talk)
	}
	if out := c.inside(t, `curl -sS -m9 http://a.allowed.test/`); !strings.Contains(out, "origin") {
		t.Errorf("attached again: %q", out)
	}
}

// TestAStoppedDaemonEndsWhatWasHandedIn, and says so before its own end.
func TestAStoppedDaemonEndsWhatWasHandedIn(t *testing.T) {
	d := world.NewDaemon(t, enterPolicy)
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config, "--drain", "1s"))
	c := contain(t, d)
	if e := d.Attach(t, "web", c.pid()); e.Code != 0 {
		t.Fatalf("exit %d, %q", e.Code, e.Talk)
	}
	d.Cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.Exited:
	case <-time.After(30 * time.Second):
		t.Fatal("it does not stop")
	}
	all, err := d.Log.Since(0)
	if err != nil || len(all) < 2 {
		t.Fatal(err, all)
	}
	if left := all[len(all)-2]; left.Kind != "stop" || left.Sandbox != "web" || !strings.HasPrefix(left.Note, "left") {
		t.Errorf("the last but one record is %+v", left)
	}
	if out := c.inside(t, `curl -sS -m3 http://a.allowed.test/`); strings.Contains(out, "origin") {
		t.Errorf("without a daemon: %q", out)
	}
}
