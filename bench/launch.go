//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A proxy is a way to start one of the programs under test.
type proxy struct {
	name string
	host string // the name under which it can reach the origins

	// command returns what to run. Its files belong into dir, which is fresh
	// and readable by everyone; it is to listen on port of 127.0.0.1.
	command func(dir string, port int, o origins) (*exec.Cmd, error)

	// certificate is the file below dir in which the program leaves the
	// certificate of its own authority; empty where it does not inspect.
	certificate string

	// h2 is set where the program speaks HTTP/2 inside.
	h2 bool

	// tunnelsOnly is set where the program knows CONNECT alone.
	tunnelsOnly bool

	// insideOnly is set where the program does nothing but inspect.
	insideOnly bool

	// announces is set where the program is given port 0 and says on its
	// standard error where it listens.
	announces bool
}

// An absence is why a proxy is not measured, and what to type about it.
type absence struct {
	why, hint string
}

func (a *absence) Error() string { return "absent: " + a.why + "; " + a.hint }

// A running is a proxy that accepts connections on port of 127.0.0.1.
type running struct {
	port  int
	dir   string
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process was waited for
}

const (
	startPatience = 20 * time.Second
	stopPatience  = 3 * time.Second
	pollInterval  = 20 * time.Millisecond
)

// start runs the proxy in a new directory below base and waits until it
// listens. It is to be called from a locked thread: the process dies with it.
func (p *proxy) start(base string, o origins) (*running, error) {
	dir, err := os.MkdirTemp(base, p.fileName())
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	port := 0
	if !p.announces {
		if port, err = freePort(); err != nil {
			return nil, err
		}
	}
	cmd, err := p.command(dir, port, o)
	if err != nil {
		return nil, err
	}
	return p.launch(cmd, dir, port)
}

func (p *proxy) fileName() string { return strings.ReplaceAll(p.name, " ", "-") + "-" }

func (p *proxy) launch(cmd *exec.Cmd, dir string, port int) (*running, error) {
	output, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		return nil, err
	}
	defer output.Close()
	cmd.Stdout, cmd.Stderr, cmd.Dir = output, output, dir
	cmd.Env = append(cmd.Env, quietEnvironment(dir)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", p.name, err)
	}
	r := &running{port: port, dir: dir, cmd: cmd, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended shows in its output
		close(r.ended)
	}()
	if err := r.await(); err != nil {
		r.stop()
		return nil, fmt.Errorf("starting %s: %w\n%s", p.name, err, r.lastOutput())
	}
	return r, nil
}

// quietEnvironment keeps a proxy away from the user's files and proxies.
func quietEnvironment(dir string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir, "XDG_RUNTIME_DIR=" + dir, "XDG_CONFIG_HOME=" + dir}
}

// await returns when the proxy listens, or why it never will.
func (r *running) await() error {
	late := time.After(startPatience)
	for !r.listens() {
		select {
		case <-r.ended:
			return errors.New("it ended at once")
		case <-late:
			return fmt.Errorf("it does not listen after %v", startPatience)
		case <-time.After(pollInterval):
		}
	}
	return nil
}

func (r *running) listens() bool {
	if r.port == 0 {
		text, err := os.ReadFile(filepath.Join(r.dir, "output"))
		if err == nil {
			r.port = announcedPort(string(text))
		}
		return r.port != 0
	}
	c, err := net.Dial("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port)))
	if err != nil {
		return false
	}
	return c.Close() == nil
}

var announcement = regexp.MustCompile(`(?m)^egressd: listening on 127\.0\.0\.1:([0-9]+) \(proxy\)$`)

// announcedPort finds the line in which egressd says where its proxy listens,
// and returns 0 where there is none yet.
func announcedPort(output string) int {
	found := announcement.FindStringSubmatch(output)
	if found == nil {
		return 0
	}
	port, err := strconv.Atoi(found[1])
	if err != nil {
		return 0
	}
	return port
}

// stop ends the process, by its pid, and waits for it.
func (r *running) stop() {
	// Signals fail where the process has ended, which is what is wanted.
	_ = r.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-r.ended:
	case <-time.After(stopPatience):
		_ = r.cmd.Process.Kill()
		<-r.ended
	}
}

// lastOutput returns the end of what the process wrote, for a person.
func (r *running) lastOutput() string {
	text, err := os.ReadFile(filepath.Join(r.dir, "output"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text[max(0, len(text)-1000):]))
}

// freePort returns a port of 127.0.0.1 on which nothing listens now.
func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}
