package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/lab"
)

// A daemon is one running program under test, in the gateway.
type daemon struct {
	world  *world
	dir    string // holds its configuration, and is its working directory
	config string // path of the policy file
	port   int
	log    *auditLog

	foreign bool // it is no egressd, and so are its records

	cmd    *exec.Cmd
	ready  chan struct{} // closed when every listener is said to listen
	exited chan struct{} // closed when the process has ended
	talk   talk
	traced bool // the runtime was told to report of itself, and
	trace  talk // does so here

	pacing pacing
}

// A pacing keeps refusals so far apart that none is summed with others: each has a
// record of its own then.
type pacing map[string][]time.Time

// singles is how many refusals of a kind may come within a second: two less than have
// records of their own.
const singles = 8

// pace waits until another refusal of a kind, of which most come at a time, may be
// asked for.
func (p pacing) pace(kind string, most int) {
	const within = 1200 * time.Millisecond
	recent := p[kind]
	if len(recent) >= most {
		time.Sleep(time.Until(recent[0].Add(within)))
		recent = recent[1:]
	}
	p[kind] = append(recent, time.Now())
}

// A talk keeps what a process says.
type talk struct {
	mu   sync.Mutex
	text strings.Builder
}

func (t *talk) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(b)
}

func (t *talk) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

const proxyPort = 3128

// rest is what every configuration has beside its policy.
const rest = `
audit: {dir: audit, durability: process}
upstream: {dns: ["%s"]}
`

// listeners are those of a configuration whose policy names none. One that names
// its own has two or more of them.
const listeners = `
listen: {proxy: ["%s:%d", "[%s]:%d"]}
`

// deadlines are those of a configuration whose policy names no limits. A head and a
// hello may take a program long on a machine that is busy, and promptly judges what
// only a deadline ends; a host that does not answer is waited for.
const deadlines = `
limits: {head_timeout: 20s, hello_timeout: 20s, dial_timeout: 2s}
`

// policyText returns one of the policies that the cases are judged under.
func policyText(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(Source("testdata", "conformance", "policies", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// writeConfig writes a policy file and what else the configuration needs.
func (d *daemon) writeConfig(t *testing.T, policy string) {
	t.Helper()
	text := policy + fmt.Sprintf(rest, resolver)
	if !strings.Contains(policy, "listen:") {
		text += fmt.Sprintf(listeners, lab.GatewayIPv4, d.port, lab.GatewayIPv6, d.port)
	}
	if !strings.Contains(policy, "limits:") {
		text += deadlines
	}
	if err := os.WriteFile(d.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// newDaemon prepares an egressd with the policy, without starting it.
func newDaemon(t *testing.T, policy string) *daemon {
	t.Helper()
	return newDaemonIn(t, theWorld(t), policy)
}

// newDaemonIn prepares one for the gateway of a world.
func newDaemonIn(t *testing.T, w *world, policy string) *daemon {
	t.Helper()
	noteSources(t)
	dir := t.TempDir()
	d := &daemon{world: w, dir: dir, config: filepath.Join(dir, "egressd.yaml"), port: proxyPort, pacing: pacing{}}
	d.log = &auditLog{dir: filepath.Join(dir, "audit")}
	t.Cleanup(func() { // when all that writes has ended
		if !d.foreign {
			conform(t, dir)
		}
	})
	d.writeConfig(t, policy)
	for name, text := range map[string]string{
		"ci.token": "open-sesame", "web.token": "another-secret", "api.secret": realSecret, "lab.pem": string(d.world.origin.ca.pem()),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// start runs egressd with the policy until the end of the test, which fails
// if egressd ends before.
func start(t *testing.T, policy string) *daemon {
	t.Helper()
	d := newDaemon(t, policy)
	d.run(t, exec.Command(Egressd.Path(), "serve", "--config", d.config))
	t.Cleanup(func() { d.stop(t) })
	return d
}

// run starts the process and waits until it listens.
func (d *daemon) run(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if !d.begin(t, cmd) {
		t.Fatalf("egressd ended before it listened:\n%s", d.talk.String())
	}
}

// begin is run where egressd may refuse to start; it reports whether it listens.
func (d *daemon) begin(t *testing.T, cmd *exec.Cmd) bool {
	t.Helper()
	said, saying, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	d.cmd, d.ready, d.exited = cmd, make(chan struct{}), make(chan struct{})
	cmd.Dir, cmd.Stderr = d.dir, saying
	cmd.Env = append(append(os.Environ(), hostileEnvironment()...), "XDG_RUNTIME_DIR="+d.dir, "HOME="+d.dir, "XDG_STATE_HOME="+d.dir)
	if err := d.world.Gateway.Start(cmd); err != nil {
		t.Fatal(err)
	}
	saying.Close()
	go d.listen(said, d.ready)
	go func(exited chan struct{}) {
		cmd.Wait()
		close(exited)
	}(d.exited)
	select {
	case <-d.ready:
		return true
	case <-d.exited:
		return false
	case <-time.After(30 * time.Second):
		cmd.Process.Kill()
		t.Fatalf("egressd did not listen within 30 s:\n%s", d.talk.String())
	}
	return false
}

// hostileEnvironment holds proxies that egressd must not use.
func hostileEnvironment() []string {
	var env []string
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		env = append(env, name+"=http://"+evilIPv4+":3128")
	}
	return append(env, "NO_PROXY=", "no_proxy=")
}

// listen keeps what the process says, and closes ready after the line for the
// last listener.
func (d *daemon) listen(said io.ReadCloser, ready chan struct{}) {
	defer said.Close()
	missing := 2
	lines := bufio.NewScanner(said)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if d.traced && isTrace(lines.Text()) {
			fmt.Fprintln(&d.trace, lines.Text())
			continue
		}
		fmt.Fprintln(&d.talk, lines.Text())
		if strings.Contains(lines.Text(), "egressd: listening on ") && strings.HasSuffix(lines.Text(), " (proxy)") {
			if missing--; missing == 0 {
				close(ready)
			}
		}
	}
}

// isTrace reports whether a line is one of GODEBUG=schedtrace or gctrace. The runtime writes them
// piece by piece, so that what egressd says may stand in the middle of one.
func isTrace(line string) bool {
	return !strings.Contains(line, "egressd: ") && (strings.HasPrefix(line, "SCHED ") || strings.HasPrefix(line, "gc ") || line == forcedCollection || strings.HasPrefix(line, "  "))
}

// stop ends egressd as an operator does. It has to go by itself.
func (d *daemon) stop(t *testing.T) {
	t.Helper()
	if !d.alive() {
		t.Errorf("egressd ended by itself (%v):\n%s", d.cmd.ProcessState, d.talk.String())
		return
	}
	d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.exited:
	case <-time.After(30 * time.Second):
		t.Errorf("egressd did not stop within 30 s of SIGTERM")
		d.kill()
	}
	if t.Failed() {
		t.Logf("egressd said:\n%s", d.talk.String())
	}
}

func (d *daemon) kill() {
	d.cmd.Process.Kill()
	<-d.exited
}

// alive reports whether the process runs; one that nobody has waited for yet
// does not.
func (d *daemon) alive() bool {
	select {
	case <-d.exited:
		return false
	default:
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.cmd.Process.Pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// address returns where the proxy listens.
func (d *daemon) address() string { return net.JoinHostPort(lab.GatewayIPv4, strconv.Itoa(d.port)) }

// dial connects to the proxy from the sandbox.
func (d *daemon) dial() (net.Conn, error) { return d.world.Sandbox.Dial("tcp", d.address()) }

// connections counts the process's TCP sockets that are neither listening nor
// waiting for nothing but time to pass.
func (d *daemon) connections() int {
	n := 0
	for _, table := range []string{"tcp", "tcp6"} {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", d.cmd.Process.Pid, table))
		n += countSockets(string(text))
	}
	return n
}

func countSockets(table string) (n int) {
	for line := range strings.Lines(table) {
		const listening, timeWait, noInode = "0A", "06", "0"
		f := strings.Fields(line)
		if len(f) > 9 && f[0] != "sl" && f[3] != listening && f[3] != timeWait && f[9] != noInode {
			n++
		}
	}
	return n
}

// descriptors counts the process's open files.
func (d *daemon) descriptors() int {
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
	return len(entries)
}
