package run

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/egressd/egressd/e2e/world"
)

// A running is egressd run under way.
type running struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// beginRun starts a program under egressd run that says "ready" when it is.
func beginRun(t *testing.T, d *world.Daemon, script string) *running {
	t.Helper()
	r := &running{Cmd: jailed(t.Context(), d, "user", []string{"-q"}, "sh", "-c", script)}
	r.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if r.in, err = r.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := r.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Stderr = os.Stderr
	r.out = bufio.NewReader(out)
	if err := d.World.Gateway.Start(r.Cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Process.Kill(); r.Cmd.Wait() })
	r.reads(t, "ready")
	return r
}

// reads waits for a line.
func (r *running) reads(t *testing.T, want string) {
	t.Helper()
	line, err := r.out.ReadString('\n')
	if strings.TrimSpace(line) != want {
		t.Fatalf("read %q, %v; want %q", line, err, want)
	}
}

func TestRunPassesSignalsOn(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGUSR1} {
		r := beginRun(t, d, fmt.Sprintf(`trap 'echo got; exit 9' %d; echo ready; while :; do sleep 0.05; done`, s))
		r.Process.Signal(s)
		r.reads(t, "got")
		r.Cmd.Wait()
		if code := r.ProcessState.ExitCode(); code != 9 {
			t.Errorf("%v: exit %d", s, code)
		}
	}
}

// TestRunStopsAndGoesOnWithItsProgram has the program stop itself.
func TestRunStopsAndGoesOnWithItsProgram(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	r := beginRun(t, d, `echo ready; kill -STOP $$; echo on; exit 4`)
	if !world.Eventually(10*time.Second, func() bool { return stateOf(r.Process.Pid) == "T" }) {
		t.Fatalf("egressd is %q after its program stopped", stateOf(r.Process.Pid))
	}
	r.Process.Signal(syscall.SIGCONT)
	r.reads(t, "on")
	r.Cmd.Wait()
	if code := r.ProcessState.ExitCode(); code != 4 {
		t.Errorf("exit %d", code)
	}
}

// TestRunGoesOnWithItsProgram has a stopped program continued, or killed, by a process inside.
func TestRunGoesOnWithItsProgram(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	for signal, status := range map[string]string{"CONT": "exit status 4", "KILL": "signal: killed"} {
		r := beginRun(t, d, fmt.Sprintf(`p=$$; exec 3<&0; (read x <&3; kill -%s $p) & echo ready; kill -STOP $$; echo on; exit 4`, signal))
		if !world.Eventually(10*time.Second, func() bool { return stateOf(r.Process.Pid) == "T" }) {
			t.Fatalf("egressd is %q after its program stopped", stateOf(r.Process.Pid))
		}
		if _, err := io.WriteString(r.in, "go on\n"); err != nil {
			t.Fatal(err)
		}
		end := time.AfterFunc(20*time.Second, func() { r.Process.Kill() })
		if r.Cmd.Wait(); r.ProcessState.String() != status || !end.Stop() {
			t.Errorf("after a %s inside, run ended by %v; want %s", signal, r.ProcessState, status)
		}
	}
}

// stateOf is the letter by which the kernel calls what a process does.
func stateOf(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	state, _, _ := strings.Cut(rest, " ")
	return state
}

// TestKillingRunLeavesNothing kills egressd as no program can prevent.
func TestKillingRunLeavesNothing(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	r := beginRun(t, d, `(trap '' HUP; sleep 60) & setsid sleep 60 & curl -sS -m9 http://a.allowed.test/ >/dev/null && echo ready; wait`)
	wire, err := d.World.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	r.Process.Kill()
	ended := make(chan error, 1)
	go func() { _, err := io.Copy(io.Discard, r.out); ended <- err }() // all of them have its other end
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("what the program started goes on")
	}
	r.Cmd.Wait()
	packets, err := d.World.Wire.Since(wire)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packets {
		if p.SYN && !p.ACK { // the end of a connection before may still be on its way
			t.Errorf("sent %v", p)
		}
	}
	if runs, _ := filepath.Glob(filepath.Join(d.Dir, "runs", "*", "*")); len(runs) == 0 {
		t.Error("the log is gone")
	}
}

// A terminal is a pseudo-terminal with a session on it.
type terminal struct {
	*os.File
	t    *testing.T
	seen strings.Builder
}

// onTerminal starts a command as the leader of a terminal's session.
func onTerminal(t *testing.T, d *world.Daemon, cmd *exec.Cmd) *terminal {
	t.Helper()
	master, slave, err := world.NewTerminal()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	defer slave.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := d.World.Gateway.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return &terminal{File: master, t: t}
}

// until reads up to a text, and returns what came before it.
func (c *terminal) until(want string) (before string) {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(30 * time.Second))
	b := make([]byte, 1024)
	for !strings.Contains(c.seen.String(), want) {
		n, err := c.Read(b)
		c.seen.Write(b[:n])
		if err != nil {
			c.t.Fatalf("%v; the terminal shows %q, want %q", err, c.seen.String(), want)
		}
	}
	before, rest, _ := strings.Cut(c.seen.String(), want)
	c.seen.Reset()
	c.seen.WriteString(rest)
	return before
}

func (c *terminal) types(keys string) {
	c.t.Helper()
	if _, err := io.WriteString(c, keys); err != nil {
		c.t.Fatal(err)
	}
}

// TestRunOnATerminal works at a shell inside and at one outside, as a person does.
func TestRunOnATerminal(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	inner := fmt.Sprintf("%s run -q --config %s -- ", world.Egressd.Path(), d.Config)
	outer := exec.Command("bash", "--norc", "--noprofile", "-i")
	outer.Dir = d.Dir
	outer.Env = append(os.Environ(), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir, "PS1=outer> ", "TERM=dumb", "HISTFILE=")
	c := onTerminal(t, d, outer)
	c.until("outer> ")

	c.types(inner + "sh -c 'echo begun; exec sleep 60'\n")
	c.until("begun\r\n")
	c.types("\x03")
	c.until("outer> ")
	c.types("echo code $?\n")
	c.until("code 130")
	c.until("outer> ")

	c.types(inner + "sh -c 'trap \"echo caught; exit 5\" INT; echo begun; while :; do sleep 0.05; done'; echo code $?\n")
	c.until("begun\r\n")
	c.types("\x03")
	c.until("caught")
	c.until("code 5")
	c.until("outer> ")

	// One Ctrl-C is one signal: many programs take a second one for more.
	count := `import signal, time; n = []; signal.signal(signal.SIGINT, lambda *a: n.append(1)); print("begun", flush=True); time.sleep(1); print("count", len(n))`
	c.types(inner + "python3 -c '" + count + "'\n")
	c.until("begun\r\n")
	c.types("\x03")
	c.until("count 1")
	c.until("outer> ")

	// A shell waits for a program that it starts until the program is executed, and is not stopped meanwhile: vfork(2).
	c.types(inner + "sh -c 'sleep 60 & echo begun; wait; echo over'\n")
	c.until("begun\r\n")
	c.types("\x1a")
	c.until("Stopped")
	c.until("outer> ")
	c.types("kill %1; fg; echo code $?\n")
	c.until("code 143")
	c.until("outer> ")

	// The terminal has its name inside, others can be made, and devices are hidden all the same.
	writeScript(t, d, "look.sh", `tty | cmp - outer.tty && echo same
python3 -c 'import os, pty; print("made", os.ttyname(pty.openpty()[1]))'
find /dev -path /dev/fd -prune -o -path /dev/pts -prune -o -path /dev/shm -prune -o \( -type b -o -type c \) -print | while read f; do
case ${f#/dev/} in null|zero|full|random|urandom|hwrng|tty|ptmx|fuse|net/tun|kvm|userfaultfd|cpu_dma_latency|udmabuf|dma_heap/*|dri/*|snd/*|video*|media*|nvidia*|kfd|accel/*|dxg|mali*|sgx_*) continue;; esac
test "$(stat -c %t:%T $f)" != 1:3 && test -w $f && echo "can write $f"; done; echo looked
`)
	c.types("tty > outer.tty; " + inner + "sh look.sh\n")
	c.until("same\r\nmade /dev/pts/")
	if seen := c.until("looked\r\n"); strings.Contains(seen, "can write") {
		t.Errorf("devices at a terminal: %q", seen)
	}
	c.until("outer> ")

	c.types(inner + "bash --norc --noprofile -i\n")
	c.until("bash")
	c.types("PS1='inner> '\n")
	c.until("inner> ")
	c.until("inner> ")
	c.types("sh -c 'echo begun; exec sleep 60'\n")
	c.until("begun\r\n")
	c.types("\x1a")
	c.until("Stopped")
	c.until("inner> ")
	c.types("jobs; kill %1; fg; true; stty size\n")
	c.until("Terminated")
	size := [4]uint16{33, 77}
	if err := world.Control(c.File, syscall.TIOCSWINSZ, unsafe.Pointer(&size)); err != nil {
		t.Fatal(err)
	}
	c.types("stty size\n")
	c.until("33 77")
	c.types("exit 6\n")
	c.until("outer> ")
	c.types("echo code $?\n")
	c.until("code 6")
}

// TestTheTerminalComesBack has a shell inside take the terminal, and a shell outside read from it
// afterwards.
func TestTheTerminalComesBack(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	inside := jailed(t.Context(), d, "user", []string{"-q"}, "bash", "--norc", "-i")
	cmd := exec.Command("sh", append([]string{"-c", `"$@"; echo back; read line && echo "got $line"`, "sh"}, inside.Args...)...)
	cmd.Dir, cmd.Env = inside.Dir, append(inside.Env, "PS1=ready:")
	term := onTerminal(t, d, cmd)
	term.until("ready:")
	term.types("exit\n")
	term.until("back")
	term.types("word\n")
	term.until("got word")
}

// TestRunWhereProcIsPartlyHidden has a /proc as containers have it, beside which the kernel lets nobody
// mount another.
func TestRunWhereProcIsPartlyHidden(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	inside := jailed(t.Context(), d, "user", nil, "sh", "-c", "echo $PPID; exit 3")
	cmd := exec.Command("unshare", append([]string{"--user", "--map-root-user", "--mount", "sh", "-c", `mount -t tmpfs none /proc/sys && "$@"`, "sh"}, inside.Args...)...)
	var out, talk strings.Builder
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = inside.Dir, inside.Env, &out, &talk
	_ = d.World.Gateway.Run(cmd)
	if code := cmd.ProcessState.ExitCode(); code != 3 || out.String() == "0\n" {
		t.Errorf("exit %d, the program's parent is %q: %s", code, out.String(), talk.String())
	}
	if !strings.Contains(talk.String(), "egressd doctor") {
		t.Errorf("run says nothing of it: %s", talk.String())
	}
}
