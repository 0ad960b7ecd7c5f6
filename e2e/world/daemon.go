package world

import (
	"bufio"
	"errors"
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

// A Daemon is one running program under test, in the gateway.
type Daemon struct {
	World  *World
	Dir    string // holds its configuration, and is its working directory
	Config string // path of the policy file
	Port   int
	Log    *AuditLog

	Foreign bool // it is no egressd, and so are its records
	OverTLS bool // clients of the proxy connect to its TLS listener, see WithTLS

	Cmd    *exec.Cmd
	ready  chan struct{} // closed when every listener is said to listen
	Exited chan struct{} // closed when the process has ended
	Output Output
	Traced bool   // the runtime was told to report of itself, and
	Trace  Output // does so here

	Pacing pacing

	begun func() error // nil, or called on the thread that has started the process
}

// A pacing keeps refusals so far apart that none is summed with others: each has a
// record of its own then.
type pacing map[string][]time.Time

// Singles is how many refusals of a kind may come within a second: two less than have
// records of their own.
const Singles = 8

// Pace waits until another refusal of a kind, of which most come at a time, may be
// asked for.
func (p pacing) Pace(kind string, most int) {
	const within = 1200 * time.Millisecond
	recent := p[kind]
	if len(recent) >= most {
		time.Sleep(time.Until(recent[0].Add(within)))
		recent = recent[1:]
	}
	p[kind] = append(recent, time.Now())
}

// A Output keeps what a process says.
type Output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (t *Output) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(b)
}

func (t *Output) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

const ProxyPort = 3128

// CommonConfig is what every configuration has beside its policy.
const CommonConfig = auditConfig + `
upstream: {dns: ["%s"]}
`

// auditConfig is CommonConfig without the name server, for a policy with an upstream section.
const auditConfig = `
audit: {dir: audit, durability: process}
`

// ListenConfig are those of a configuration whose policy names none. One that names
// its own has two or more of them.
const ListenConfig = `
listen: {open_to_network: true, proxy: ["%s:%d", "[%s]:%d"]}
`

// deadlines are those of a configuration whose policy names no limits. A head and a
// hello may take a program long on a machine that is busy, and promptly judges what
// only a deadline ends; a host that does not answer is waited for.
const deadlines = `
limits: {head_timeout: 20s, hello_timeout: 20s, dial_timeout: 2s}
`

// PolicyText returns one of the policies that the cases are judged under.
func PolicyText(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(Source("testdata", "conformance", "policies", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// WriteConfig writes a policy file and what else the configuration needs.
func (d *Daemon) WriteConfig(t *testing.T, policy string) {
	t.Helper()
	text := policy + auditConfig
	if !strings.Contains(policy, "upstream:") {
		text = policy + fmt.Sprintf(CommonConfig, Resolver)
	}
	if !strings.Contains(policy, "listen:") {
		text += fmt.Sprintf(ListenConfig, lab.GatewayIPv4, d.Port, lab.GatewayIPv6, d.Port)
	}
	if !strings.Contains(policy, "limits:") {
		text += deadlines
	}
	if err := os.WriteFile(d.Config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// NewDaemon prepares an egressd with the policy, without starting it.
func NewDaemon(t *testing.T, policy string) *Daemon {
	t.Helper()
	return NewDaemonIn(t, Open(t), policy)
}

// NewDaemonIn prepares one for the gateway of a world.
func NewDaemonIn(t *testing.T, w *World, policy string) *Daemon {
	t.Helper()
	noteSources(t)
	dir := t.TempDir()
	d := &Daemon{World: w, Dir: dir, Config: filepath.Join(dir, "egressd.yaml"), Port: ProxyPort, Pacing: pacing{}}
	d.Log = &AuditLog{Dir: filepath.Join(dir, "audit")}
	t.Cleanup(func() { // when all that writes has ended
		if !d.Foreign {
			conform(t, dir)
		}
	})
	d.WriteConfig(t, policy)
	for name, text := range map[string]string{
		"ci.token": "open-sesame", "web.token": "another-secret", "api.secret": RealSecret, "lab.pem": string(d.World.Origin.Ca.PEM()),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// Start runs egressd with the policy until the end of the test, which fails
// if egressd ends before.
func Start(t *testing.T, policy string) *Daemon {
	t.Helper()
	d := NewDaemon(t, policy)
	d.Run(t, exec.Command(Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	return d
}

// Run starts the process and waits until it listens.
func (d *Daemon) Run(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if !d.Begin(t, cmd) {
		t.Fatalf("egressd ended before it listened:\n%s", d.Output.String())
	}
}

// Begin is run where egressd may refuse to start; it reports whether it listens.
func (d *Daemon) Begin(t *testing.T, cmd *exec.Cmd) bool {
	t.Helper()
	said, saying, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	d.Cmd, d.ready, d.Exited = cmd, make(chan struct{}), make(chan struct{})
	cmd.Dir, cmd.Stderr = d.Dir, saying
	cmd.Env = append(append(os.Environ(), HostileEnvironment()...), "XDG_RUNTIME_DIR="+d.Dir, "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir)
	err = d.World.Gateway.Start(cmd)
	if err == nil && d.begun != nil {
		err = d.World.Gateway.Do(d.begun)
	}
	if err != nil {
		t.Fatal(err)
	}
	saying.Close()
	go d.listen(said, d.ready)
	go func(exited chan struct{}) {
		cmd.Wait()
		close(exited)
	}(d.Exited)
	select {
	case <-d.ready:
		return true
	case <-d.Exited:
		return false
	case <-time.After(30 * time.Second):
		cmd.Process.Kill()
		t.Fatalf("egressd did not listen within 30 s:\n%s", d.Output.String())
	}
	return false
}

// HostileEnvironment holds proxies that egressd must not use.
func HostileEnvironment() []string {
	var env []string
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		env = append(env, name+"=http://"+EvilIPv4+":3128")
	}
	return append(env, "NO_PROXY=", "no_proxy=")
}

// listen keeps what the process says, and closes ready after the line for the
// last listener.
func (d *Daemon) listen(said io.ReadCloser, ready chan struct{}) {
	defer said.Close()
	missing := 2
	lines := bufio.NewScanner(said)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if d.Traced && isTrace(lines.Text()) {
			fmt.Fprintln(&d.Trace, lines.Text())
			continue
		}
		fmt.Fprintln(&d.Output, lines.Text())
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
	return !strings.Contains(line, "egressd: ") && (strings.HasPrefix(line, "SCHED ") || strings.HasPrefix(line, "gc ") || line == ForcedCollection || strings.HasPrefix(line, "  "))
}

// Stop ends egressd as an operator does. It has to go by itself.
func (d *Daemon) Stop(t *testing.T) {
	t.Helper()
	if !d.Alive() {
		t.Errorf("egressd ended by itself (%v):\n%s", d.Cmd.ProcessState, d.Output.String())
		return
	}
	d.Cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.Exited:
	case <-time.After(30 * time.Second):
		t.Errorf("egressd did not stop within 30 s of SIGTERM")
		d.Kill()
	}
	if t.Failed() {
		t.Logf("egressd said:\n%s", d.Output.String())
	}
}

// Kill ends egressd with SIGKILL.
func (d *Daemon) Kill() {
	d.Cmd.Process.Kill()
	<-d.Exited
}

// Alive reports whether the process runs; one that nobody has waited for yet
// does not.
func (d *Daemon) Alive() bool {
	select {
	case <-d.Exited:
		return false
	default:
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.Cmd.Process.Pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// Address returns where the proxy listens.
func (d *Daemon) Address() string { return net.JoinHostPort(lab.GatewayIPv4, strconv.Itoa(d.Port)) }

// Dial connects to the proxy from the sandbox.
func (d *Daemon) Dial() (net.Conn, error) {
	if d.OverTLS {
		return d.dialTLS()
	}
	return d.World.Sandbox.Dial("tcp", d.Address())
}

// Connections counts the process's TCP sockets that are neither listening nor
// waiting for nothing but time to pass.
func (d *Daemon) Connections() int {
	n := 0
	for _, table := range []string{"tcp", "tcp6"} {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", d.Cmd.Process.Pid, table))
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

// Descriptors counts the process's open files.
func (d *Daemon) Descriptors() int {
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.Cmd.Process.Pid))
	return len(entries)
}

// Fails runs egressd, which has to end by itself and leave nothing listening.
func (d *Daemon) Fails(t *testing.T) (code int, said string) {
	t.Helper()
	cmd := exec.Command(Egressd.Path(), "serve", "--config", d.Config)
	cmd.Dir, cmd.Stderr = d.Dir, &d.Output
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+d.Dir, "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir)
	if err := d.World.Gateway.Start(cmd); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(Patience, func() { cmd.Process.Kill() })
	defer late.Stop()
	var exit *exec.ExitError
	if err := cmd.Wait(); errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	if c, err := d.Dial(); err == nil {
		c.Close()
		t.Errorf("something listens on %s", d.Address())
	} else if netErr, ok := errors.AsType[net.Error](err); ok && netErr.Timeout() {
		t.Errorf("dialling the port took too long")
	}
	return code, d.Output.String()
}

const ForcedCollection = "GC forced" // says the runtime when it collects because it has not for two minutes
