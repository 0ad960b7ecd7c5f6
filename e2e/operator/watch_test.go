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

	"github.com/egressd/egressd/e2e/world"
	"golang.org/x/sys/unix"
)

// A terminal is a program at a terminal of 80 columns.
type terminal struct {
	*os.File
	mu  sync.Mutex // guards all
	all bytes.Buffer
}

// atTerminal starts a program at a terminal. ended is closed when the program has ended.
func atTerminal(t *testing.T, cmd *exec.Cmd) (p *terminal, ended chan struct{}) {
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
	if err := cmd.Start(); err != nil {
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
			p, ended := atTerminal(t, cmd)
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
			if !strings.Contains(p.said(), "\x1b[?1049l") {
				t.Error("the screen is not given back")
			}
		})
	}
	t.Run("without a terminal", func(t *testing.T) {
		out, err := exec.Command(world.Egressd.Path(), "watch", "--dir", dir).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "egressd log -f") {
			t.Errorf("%v: %s", err, out)
		}
	})
}
