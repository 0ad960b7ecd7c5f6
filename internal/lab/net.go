package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// dialTimeout is how long Net.Dial waits: everything is on one machine.
const dialTimeout = 5 * time.Second

// A Net is one network namespace. Sockets made through it stay in it, whoever
// uses them later. Its methods may be called from many goroutines at once.
type Net struct {
	Name string

	calls chan func() // run one by one on the thread that lives in the namespace
	path  string      // of the namespace, for ip(8)
}

func newNet(name string) (*Net, error) {
	n := &Net{Name: name, calls: make(chan func())}
	ready := make(chan error)
	go n.live(ready)
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("make namespace %s: %w", name, err)
	}
	return n, nil
}

// live is the life of the thread. It is never unlocked: the runtime ends a
// thread whose goroutine returns locked, and the namespace goes with it.
func (n *Net) live(ready chan<- error) {
	runtime.LockOSThread()
	err := syscall.Unshare(syscall.CLONE_NEWNET)
	if err == nil {
		err = forwardNothing()
	}
	n.path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), syscall.Gettid())
	ready <- err
	if err != nil {
		return
	}
	for f := range n.calls {
		f()
	}
}

// forwardNothing makes the namespace of the calling thread a host that forwards nothing. A new namespace begins with the
// machine's setting, which an engine such as Docker's switches on.
func forwardNothing() error {
	const setting = "/proc/sys/net/ipv4/ip_forward"
	if text, err := os.ReadFile(setting); err != nil || text[0] == '0' {
		return err
	}
	return os.WriteFile(setting, []byte("0"), 0)
}

// close ends the thread. Sockets that were made in n keep it in being.
func (n *Net) close() { close(n.calls) }

// Do runs f on the thread of n. Calls of Do run one after another, so f must not wait for another call.
func (n *Net) Do(f func() error) error {
	done := make(chan error, 1)
	n.calls <- func() { done <- f() }
	return <-done
}

// Dial connects from n to an address; names are not resolved there. The caller
// closes the connection.
func (n *Net) Dial(network, address string) (c net.Conn, err error) {
	d := net.Dialer{Timeout: dialTimeout}
	err = n.Do(func() error {
		c, err = d.Dial(network, address)
		return err
	})
	return c, err
}

// Listen listens in n. The caller closes the listener.
func (n *Net) Listen(network, address string) (net.Listener, error) {
	return n.listen(&net.ListenConfig{}, network, address)
}

func (n *Net) listen(lc *net.ListenConfig, network, address string) (l net.Listener, err error) {
	err = n.Do(func() error {
		l, err = lc.Listen(context.Background(), network, address)
		return err
	})
	return l, err
}

// ListenPacket opens a packet socket in n. The caller closes it.
func (n *Net) ListenPacket(network, address string) (c net.PacketConn, err error) {
	err = n.Do(func() error {
		c, err = net.ListenPacket(network, address)
		return err
	})
	return c, err
}

// Start starts cmd in n; it is killed when this process ends.
func (n *Net) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return n.Do(cmd.Start)
}

// Run starts cmd in n and waits for its end.
func (n *Net) Run(cmd *exec.Cmd) error {
	if err := n.Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// ip runs ip(8) in n once a line.
func (n *Net) ip(lines ...string) error {
	for _, line := range lines {
		if err := n.tool("ip", strings.Fields(line), ""); err != nil {
			return err
		}
	}
	return nil
}

// nft loads a ruleset in n.
func (n *Net) nft(ruleset string) error { return n.tool("nft", []string{"-f", "-"}, ruleset) }

func (n *Net) tool(name string, args []string, input string) error {
	path, err := find(name)
	if err != nil {
		return err
	}
	var out strings.Builder
	cmd := exec.Command(path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &out
	if err := n.Run(cmd); err != nil {
		return fmt.Errorf("%s: %s %s: %w: %s", n.Name, name, strings.Join(args, " "), err, strings.TrimSpace(out.String()))
	}
	return nil
}

// find looks also where an ordinary user's PATH does not.
func find(name string) (string, error) {
	path, err := exec.LookPath(name)
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if err == nil {
			break
		}
		path, err = exec.LookPath(filepath.Join(dir, name))
	}
	return path, err
}

// set writes kernel settings of n, written as path=value under /proc/sys/net.
// A setting that this kernel does not have needs no setting.
func (n *Net) set(settings ...string) error {
	return n.Do(func() error {
		for _, s := range settings {
			name, value, _ := strings.Cut(s, "=")
			err := os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("%s: set %s: %w", n.Name, s, err)
			}
		}
		return nil
	})
}
