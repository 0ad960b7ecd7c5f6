package operator

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
	"golang.org/x/sys/unix"
)

// A terminal is a program at a terminal of 80 columns.
type terminal struct {
	*os.File
	mu  sync.Mutex // guards all
	all bytes.Buffer
}

// atTerminal starts a program at a terminal, by start. ended is closed when the program has ended.
func atTerminal(t *testing.T, cmd *exec.Cmd, start func() error) (p *terminal, ended chan struct{}) {
	t.Helper()
	f, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	p = &terminal{File: f}
	number, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(f.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(f.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80})
	}
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = other, other, other
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := start(); err != nil {
		t.Fatal(err)
	}
	other.Close()
	ended = make(chan struct{})
	go func() {
		_ = cmd.Wait() // its state is looked at
		close(ended)
	}()
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := f.Read(b)
			p.mu.Lock()
			p.all.Write(b[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		f.Close()
	})
	return p, ended
}

func (p *terminal) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all.String()
}

// shows waits until the program has written a text.
func (p *terminal) shows(t *testing.T, text string) {
	t.Helper()
	if !world.Eventually(world.Settling, func() bool { return strings.Contains(p.said(), text) }) {
		t.Fatalf("%q is not shown: %q", text, p.said())
	}
}

// redraws is shows for a screen that is drawn in parts: it changes the size of the window, and the program draws all of it.
func (p *terminal) redraws(t *testing.T, text string) {
	t.Helper()
	columns := uint16(80)
	if !world.Eventually(world.Settling, func() bool {
		from := len(p.said())
		columns ^= 1
		if err := unix.IoctlSetWinsize(int(p.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
			t.Fatal(err)
		}
		return world.Eventually(2*time.Second, func() bool { return strings.Contains(p.said()[from:], text) })
	}) {
		t.Fatalf("%q is not shown: %q", text, p.said())
	}
}

func (p *terminal) types(t *testing.T, text string) {
	t.Helper()
	if _, err := p.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

var colour = regexp.MustCompile(`\x1b\[[0-9;]*(3[0-7]|7)m`)

// TestWatchAtATerminal reads a log at a terminal, with colours and without, filters it, asks why, and ends.
func TestWatchAtATerminal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	plantedLog(t, dir)
	for name, noColour := range map[string]string{"colours": "", "NO_COLOR": "1"} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(world.Egressd.Path(), "watch", "--dir", dir, "host:nobody.example") // an empty screen, which is not drawn in parts
			cmd.Env = append(os.Environ(), "TERM=xterm-256color", "HOME="+t.TempDir(), "NO_COLOR="+noColour)
			p, ended := atTerminal(t, cmd, cmd.Start)
			p.shows(t, "COUNT")
			p.types(t, "/")
			p.shows(t, "filter: ")
			p.types(t, "\x15host:paste.example.com\r")
			p.shows(t, "paste.example.com:443")
			p.types(t, "w")
			p.shows(t, "person")
			p.types(t, "xa")
			p.shows(t, "serve")
			p.types(t, "q")
			if !world.Eventually(world.Settling, func() bool {
				select {
				case <-ended:
					return true
				default:
					return false
				}
			}) {
				t.Fatal("q does not end it")
			}
			if cmd.ProcessState.ExitCode() != 0 {
				t.Errorf("exit %d: %q", cmd.ProcessState.ExitCode(), p.said())
			}
			if coloured := colour.MatchString(p.said()); coloured != (noColour == "") {
				t.Errorf("colours: %t, want %t: %q", coloured, noColour == "", p.said())
			}
			p.shows(t, "\x1b[?1049l") // the screen is given back; what was written last may be read after the end
		})
	}
	t.Run("without a terminal", func(t *testing.T) {
		out, err := exec.Command(world.Egressd.Path(), "watch", "--dir", dir).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "egressd log -f") {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// TestWatchBesideADaemon answers a question while curl waits, allows a host that was denied, and denies it, with one key and a
// confirmation each. The log has each as a change by the process of watch.
func TestWatchBesideADaemon(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "ask: [{host: asked.allowed.test, id: place}]\n"))
	mark := d.LogMark(t)
	cmd := d.Command(t.Context(), nil, "watch", "--config", d.Config)
	cmd.Env = append(cmd.Environ(), "TERM=xterm-256color", "NO_COLOR=1")
	p, ended := atTerminal(t, cmd, func() error { return d.World.Gateway.Start(cmd) })
	p.redraws(t, "COUNT")

	waits := beside(t, d, askCurl+"http://asked.allowed.test/x")
	p.redraws(t, "? waits: a connection to asked.allowed.test:80")
	p.types(t, "a")
	p.redraws(t, "approve once: a connection to asked.allowed.test:80")
	p.types(t, "y")
	if got := <-waits; !strings.Contains(got, "GET /x") {
		t.Fatalf("approved, curl printed %q", got)
	}
	p.redraws(t, "answered: approve")
	waits = beside(t, d, askCurl+"http://asked.allowed.test/y")
	p.redraws(t, "? waits: a connection to asked.allowed.test:80")
	p.types(t, "gdy")
	if got := <-waits; !strings.Contains(got, "ask-rejected") {
		t.Fatalf("rejected, curl printed %q", got)
	}

	if got := <-beside(t, d, askCurl+"http://other.allowed.test/"); !strings.Contains(got, "default-deny") {
		t.Fatalf("before, curl printed %q", got)
	}
	p.types(t, "/host:other.allowed.test\r")
	p.redraws(t, "✗      1 other.allowed.test:80")
	for _, step := range []struct{ key, asks, says, want string }{
		{"a", "allow other.allowed.test:80 for 1 hour", "allow other.allowed.test:80; egressd grants lists it", "GET /z"},
		{"d", "deny other.allowed.test:80 for 1 hour", "deny other.allowed.test:80; egressd grants lists it", "rule-deny"},
	} {
		p.types(t, step.key+"n")
		p.redraws(t, "nothing was changed")
		p.types(t, step.key)
		p.redraws(t, step.asks)
		p.types(t, "y")
		p.redraws(t, step.says)
		if got := <-beside(t, d, askCurl+"http://other.allowed.test/z"); !strings.Contains(got, step.want) {
			t.Errorf("after %s, curl printed %q, want %q", step.says, got, step.want)
		}
	}
	records, err := d.Log.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	var notes []string
	for _, r := range records {
		if r.Kind == record.KindAdmin && strings.Contains(r.Note, fmt.Sprintf("pid %d", cmd.Process.Pid)) {
			notes = append(notes, r.Note)
		}
	}
	if all := strings.Join(notes, "\n"); len(notes) != 4 || strings.Count(all, "approve question") != 1 || strings.Count(all, "reject question") != 1 {
		t.Errorf("the log has of watch: %q", notes)
	}

	d.Stop(t)
	p.redraws(t, "egressd serve is not running")
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	if got := <-beside(t, d, askCurl+"http://other.allowed.test/"); !strings.Contains(got, "default-deny") {
		t.Fatalf("after a restart, curl printed %q", got)
	}
	p.redraws(t, "✗      2 other.allowed.test:80")
	p.types(t, "q")
	if !world.Eventually(world.Settling, func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}) {
		t.Fatal("q does not end it")
	}
}
