package operator

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
)

// A manager stands for systemd: it holds the sockets of a service, and hears of it.
type manager struct {
	sockets []*os.File
	heard   chan string // lines; closed when the test ends
	env     string      // what it tells a service, for a shell
}

// newManager opens the listeners at the addresses, in the gateway.
func newManager(t *testing.T, addresses ...string) *manager {
	t.Helper()
	w := world.Open(t)
	m := new(manager)
	for _, address := range addresses {
		l, err := w.Gateway.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		f, err := l.(*net.TCPListener).File()
		l.Close() // f is another descriptor of the same socket
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		m.sockets = append(m.sockets, f)
	}
	path := filepath.Join(t.TempDir(), "notify")
	ear, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ear.Close() })
	m.heard = make(chan string, 10000) // more than a test has; who is not heard out waits
	go m.listen(ear)
	m.env = fmt.Sprintf("LISTEN_PID=$$ LISTEN_FDS=%d NOTIFY_SOCKET=%s WATCHDOG_USEC=200000", len(addresses), path)
	return m
}

func (m *manager) listen(ear *net.UnixConn) {
	defer close(m.heard)
	for b := make([]byte, 4096); ; {
		n, err := ear.Read(b)
		if err != nil {
			return
		}
		for line := range strings.SplitSeq(string(b[:n]), "\n") {
			m.heard <- line
		}
	}
}

// command is a program as the manager starts it.
func (m *manager) command(args ...string) *exec.Cmd {
	cmd := exec.Command("sh", append([]string{"-c", m.env + ` exec "$@"`, "sh"}, args...)...)
	cmd.ExtraFiles = m.sockets
	return cmd
}

// hears waits until the service says a line. What it says in between does not matter.
func (m *manager) hears(t *testing.T, line string) {
	t.Helper()
	for late := time.After(world.Patience); ; {
		select {
		case said := <-m.heard:
			if said == line {
				return
			}
		case <-late:
			t.Fatalf("the service did not say %s", line)
		}
	}
}

func connect(host string) string {
	return fmt.Sprintf("CONNECT %[1]s:443 HTTP/1.1\r\nHost: %[1]s:443\r\n\r\n", host)
}

// TestSocketActivation has a service manager hold the listeners. Whoever connects
// while egressd is killed and started again is served by the next one.
func TestSocketActivation(t *testing.T) {
	w := world.Open(t)
	d := world.NewDaemon(t, world.PolicyText(t, "P-any"))
	m := newManager(t, d.Address(), net.JoinHostPort(lab.GatewayIPv6, fmt.Sprint(d.Port)))
	serve := func() { d.Run(t, m.command(world.Egressd.Path(), "serve", "--config", d.Config)) }
	serve()
	m.hears(t, "READY=1")
	m.hears(t, "WATCHDOG=1")
	d.Cmd.Process.Signal(syscall.SIGHUP)
	m.hears(t, "RELOADING=1")
	m.hears(t, "READY=1")
	const ask = "GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n"
	for _, address := range []string{d.Address(), net.JoinHostPort(lab.GatewayIPv6, fmt.Sprint(d.Port))} {
		if got, err := world.TalkTo(w.Sandbox, address, ask, world.Patience); !strings.Contains(got, "origin") {
			t.Errorf("allowed, at %s: got %q, %v", address, got, err)
		}
	}
	if got, err := world.TalkTo(w.Sandbox, d.Address(), connect("169.254.169.254"), world.Patience); !strings.HasPrefix(got, "HTTP/1.1 403 ") {
		t.Errorf("denied: got %q, %v", got, err)
	}

	d.Kill()
	waiting, err := d.Dial()
	if err != nil {
		t.Fatalf("while nobody runs: %v", err)
	}
	defer waiting.Close()
	if _, err := waiting.Write([]byte(connect("169.254.169.254"))); err != nil {
		t.Fatal(err)
	}
	serve()
	waiting.SetReadDeadline(time.Now().Add(world.Patience))
	b := make([]byte, 12)
	if n, err := waiting.Read(b); string(b[:n]) != "HTTP/1.1 403" {
		t.Errorf("who waited: got %q, %v", b[:n], err)
	}
	d.Stop(t)
	m.hears(t, "STOPPING=1")
}

// TestSocketsThatThePolicyDoesNotName has to find out before anybody is served.
func TestSocketsThatThePolicyDoesNotName(t *testing.T) {
	d := world.NewDaemon(t, world.PolicyText(t, "P-any"))
	refused := func(m *manager, says string) {
		t.Helper()
		cmd := m.command(world.Egressd.Path(), "serve", "--config", d.Config)
		cmd.Path, cmd.Args = "/usr/bin/timeout", append([]string{"timeout", "20"}, cmd.Args...)
		cmd.Dir = d.Dir
		cmd.Env = append(os.Environ(), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := d.World.Gateway.Run(cmd); err == nil || !strings.Contains(out.String(), says) {
			t.Errorf("%v:\n%s", err, out.String())
		}
	}
	refused(newManager(t, d.Address(), lab.GatewayIPv4+":3999"), "no listeners of "+d.Config+": "+lab.GatewayIPv4+":3999")

	// A socket that everybody may use is not the one of a sandbox.
	path := filepath.Join(d.Dir, "p.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	d.WriteConfig(t, world.PolicyText(t, "P-any")+"listen: {proxy: [\"unix:"+path+"\"]}\n")
	m := newManager(t)
	m.sockets, m.env = []*os.File{f}, "LISTEN_PID=$$ LISTEN_FDS=1"
	refused(m, "others may connect to it")
}

// TestTheUnitLeavesEnough looks at what egressd asks of the kernel while it serves,
// and whether the unit's filter lets it.
func TestTheUnitLeavesEnough(t *testing.T) {
	w := world.Open(t)
	d := world.NewDaemon(t, world.WithCapture(world.PolicyText(t, "P-any"), world.WayRedirect))
	traced := filepath.Join(d.Dir, "calls")
	w.Capture(t, world.WayRedirect)
	d.Run(t, exec.Command("strace", "-D", "-f", "-qq", "-o", traced, world.Egressd.Path(), "serve", "--config", d.Config))
	if got, err := world.TalkTo(w.Sandbox, world.AllowedIPv4+":80", "GET / HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n", world.Patience); !strings.Contains(got, "origin") {
		t.Errorf("got %q, %v", got, err)
	}
	d.Cmd.Process.Signal(syscall.SIGHUP)
	d.Stop(t)
	allowed := unitCalls(t, d)
	text, err := os.ReadFile(traced)
	if err != nil {
		t.Fatal(err)
	}
	calls := regexp.MustCompile(`(?m)^\d+ +([a-z0-9_]+)\((AF_[A-Z0-9]+)?`).FindAllStringSubmatch(string(text), -1)
	if len(calls) < 100 {
		t.Fatalf("there are %d system calls in %s", len(calls), traced)
	}
	for _, c := range calls {
		if !allowed[c[1]] {
			t.Errorf("the unit does not let it call %s", c[1])
			allowed[c[1]] = true
		}
		if family := c[2]; c[1] == "socket" && !allowed[family] {
			t.Errorf("the unit does not let it have a socket of %s", family)
		}
	}
}

// unitCalls are the system calls and families of addresses that the service may use.
func unitCalls(t *testing.T, d *world.Daemon) map[string]bool {
	t.Helper()
	cmd := exec.Command(world.Egressd.Path(), "init", "systemd", "--config", d.Config, "--print")
	unit, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	allowed := map[string]bool{}
	for line := range strings.Lines(string(unit)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		value, denies := strings.CutPrefix(value, "~")
		for _, one := range strings.Fields(value) {
			switch name {
			case "RestrictAddressFamilies":
				allowed[one] = true
			case "SystemCallFilter":
				for _, call := range callsOf(t, one) {
					allowed[call] = !denies
				}
			}
		}
	}
	for _, call := range callsOf(t, "@default") { // which every filter has
		allowed[call] = true
	}
	if !allowed["accept4"] || allowed["mount"] || !allowed["AF_NETLINK"] {
		t.Fatalf("the unit allows %v", allowed)
	}
	return allowed
}

// callsOf is what is in a set of system calls of systemd, or the one that is named.
func callsOf(t *testing.T, set string) (all []string) {
	t.Helper()
	if !strings.HasPrefix(set, "@") {
		return []string{set}
	}
	text, err := exec.Command("systemd-analyze", "--no-pager", "syscall-filter", set).Output()
	if err != nil {
		t.Fatalf("%s: %v", set, err)
	}
	for _, word := range strings.Fields(string(text))[1:] {
		if strings.HasPrefix(word, "@") {
			all = append(all, callsOf(t, word)...)
		} else {
			all = append(all, word)
		}
	}
	return all
}
