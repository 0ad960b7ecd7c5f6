package run

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
)

// TestRunEndsAsItsProgram has programs that a signal ends, and signals for them that are sent to run.
func TestRunEndsAsItsProgram(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	for user := range world.Users {
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGKILL, syscall.SIGQUIT, syscall.SIGSEGV, syscall.SIGALRM, 40} {
			cmd := jailed(t.Context(), d, user, []string{"-q"}, "python3", "-c", "import os,signal; signal.signal("+itoa(s)+", signal.SIG_DFL) if "+itoa(s)+" != 9 else 0; os.kill(os.getpid(), "+itoa(s)+")")
			out := &strings.Builder{}
			cmd.Stdout, cmd.Stderr = out, out
			_ = d.World.Gateway.Run(cmd) // the status says it
			if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != s {
				t.Errorf("%s, %v: %v %s", user, s, cmd.ProcessState, out)
			}
		}
		for _, s := range []syscall.Signal{syscall.SIGALRM, syscall.SIGUSR1, syscall.SIGHUP, syscall.SIGWINCH, syscall.SIGABRT, syscall.SIGXCPU, 36, 64} {
			cmd := jailed(t.Context(), d, user, []string{"-q"}, "python3", "-c", "import signal,sys; signal.signal("+itoa(s)+", lambda *a: sys.exit(5)); print('up', flush=True)\nwhile True: signal.pause()")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := d.World.Gateway.Start(cmd); err != nil {
				t.Fatal(err)
			}
			_, _ = out.Read(make([]byte, 3)) // the program is up
			_ = cmd.Process.Signal(s)
			if _ = cmd.Wait(); codeOf(cmd.ProcessState) != 5 {
				t.Errorf("%s, %v is not passed on: %v", user, s, cmd.ProcessState)
			}
		}
	}
}

func itoa(s syscall.Signal) string { return strconv.Itoa(int(s)) }

// TestCtrlCEndsALoop has a shell that starts run again and again.
func TestCtrlCEndsALoop(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	outer := exec.Command("bash", "--norc", "--noprofile", "-i")
	outer.Dir = d.Dir
	outer.Env = append(os.Environ(), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir, "PS1=outer> ", "HISTFILE=", "RUN="+world.Egressd.Path()+" run -q --config "+d.Config+" --")
	c := onTerminal(t, d, outer)
	c.until("outer> ")
	c.types("while true; do $RUN sh -c 'echo r''ound; exec sleep 60'; done; echo st''ill\n")
	c.until("round\r\n")
	c.types("\x03")
	if got := c.until("outer> "); strings.Contains(got, "round") {
		t.Errorf("the loop goes on: %q", got)
	}
}

// TestRunEndsWhatIsLeftBehind has background processes that outlive the program.
func TestRunEndsWhatIsLeftBehind(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	const tidy = `rm -f tidied ended; (trap "" HUP; trap "sleep 0.3; curl -sS -m9 http://a.allowed.test/ >tidied; exit" TERM; echo >up; while :; do sleep 0.05; done) & while ! [ -e up ]; do sleep 0.02; done; rm up; exit 3`
	for user := range world.Users {
		r := runAs(t, d, user, tidy)
		if text, _ := os.ReadFile(filepath.Join(d.Dir, "tidied")); r.code != 3 || !strings.Contains(string(text), "origin") || !strings.Contains(r.talk, "left behind: sh ") || !strings.Contains(r.talk, "--wait") {
			t.Errorf("%s: exit %d, tidied %q, %s", user, r.code, text, r.talk)
		}
		if r := runAs(t, d, user, `(sleep 1; curl -sS -m9 http://a.allowed.test/ >ended) & exit 3`, "--wait"); r.code != 3 || !strings.Contains(readAll(t, filepath.Join(d.Dir, "ended")), "origin") {
			t.Errorf("%s: --wait: exit %d, %s", user, r.code, r.talk)
		}
		if r := runAs(t, d, user, `trap "" TERM; sleep 1000 & sleep 1000 & exit 4`); r.code != 4 || !strings.Contains(r.talk, "killed what the program left behind: sleep ×2") {
			t.Errorf("%s: exit %d, %s", user, r.code, r.talk)
		}
		if r := runAs(t, d, user, `sleep 0.01 & exit 5`); r.code != 5 || strings.Contains(r.talk, "left behind") {
			t.Errorf("%s: exit %d, %s", user, r.code, r.talk)
		}
	}
}

// TestRunAsksNobody has a terminal that another program made, on which nobody types.
func TestRunAsksNobody(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	for _, flags := range []string{"", "--fail-on-deny --summary sum.json"} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, "script", "-qec", world.Egressd.Path()+" run --config "+d.Config+" "+flags+" -- curl -so x http://evil.test/", "typescript")
		cmd.Dir = d.Dir
		cmd.Env = append(os.Environ(), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir, "TERM=xterm", "CI=")
		out := &strings.Builder{}
		cmd.Stdout = out
		if err := d.World.Gateway.Run(cmd); ctx.Err() != nil || strings.Contains(out.String(), "q: quit") || !strings.Contains(out.String(), "to allow it: egressd allow evil.test") {
			t.Errorf("%v, %s", err, out)
		}
	}
}
