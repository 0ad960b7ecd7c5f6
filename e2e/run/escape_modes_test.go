package run

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
)

// TestEscapesByModes has a program of one run close files and folders of its user, and one of the next run open them again.
func TestEscapesByModes(t *testing.T) {
	const connect = `for s in svc/*; do socat -t1 - UNIX-CONNECT:$s </dev/null 2>&1 | grep -o outside; done; echo over`
	for _, row := range []struct{ says, first, next, out string }{
		{"a folder of a socket", `chmod 000 svc`, `chmod 700 svc; ` + connect, "over\n"},
		{"a folder above", `mkdir -p up; mv svc up; ln -s up/svc svc; chmod 000 up`, `chmod 700 up; ` + connect, "over\n"},
		{"a folder that cannot be listed", `mv svc/s svc/t; chmod 300 svc`, `chmod 700 svc; ` + connect, "over\n"},
		{"a folder above the policy", `chmod 500 a`, `chmod 700 a; mv a/b a/c 2>/dev/null && echo moved; echo over`, "over\n"},
		{"a folder of a link to the policy", `chmod 500 links`, `chmod 700 links 2>/dev/null; rm -f links/p.yaml 2>/dev/null && echo removed; echo over`, "over\n"},
	} {
		t.Run(row.says, func(t *testing.T) {
			d := world.NewDaemon(t, world.RunPolicy)
			writeFiles(t, d, 0o644, map[string]string{"a/b/d/p.yaml": world.RunPolicy, "svc/x": "", "links/x": ""})
			policy := filepath.Join(d.Dir, "a", "b", "d", "p.yaml")
			if strings.Contains(row.says, "link") {
				policy = filepath.Join(d.Dir, "links", "p.yaml")
				if err := os.Symlink("../a/b/d/p.yaml", policy); err != nil {
					t.Fatal(err)
				}
			}
			t.Cleanup(func() { // so that the folder can be removed
				for _, folder := range []string{"a", "svc", "links", "up"} {
					_ = os.Chmod(filepath.Join(d.Dir, folder), 0o700)
				}
			})
			l, err := d.World.Gateway.Listen("unix", filepath.Join(d.Dir, "svc", "s"))
			if err != nil {
				t.Fatal(err)
			}
			world.Serve(t, l, func(c net.Conn) { fmt.Fprintln(c, "outside") })
			outside := exec.Command("sh", "-c", row.first) // as an earlier program: no wall is about modes
			outside.Dir = d.Dir
			if out, err := outside.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if r := runAs(t, d, "user", row.next, "--config", policy); r.code != 0 || r.out != row.out {
				t.Errorf("exit %d, %q, %s", r.code, r.out, r.talk)
			}
		})
	}
	t.Run("a socket", func(t *testing.T) {
		d := world.NewDaemon(t, world.RunPolicy)
		writeFiles(t, d, 0o644, map[string]string{"svc/x": ""})
		l, err := d.World.Gateway.Listen("unix", filepath.Join(d.Dir, "svc", "s"))
		if err != nil {
			t.Fatal(err)
		}
		world.Serve(t, l, func(c net.Conn) { fmt.Fprintln(c, "outside") })
		if err := os.Chmod(filepath.Join(d.Dir, "svc", "s"), 0o400); err != nil {
			t.Fatal(err)
		}
		for _, user := range []string{"user", "root"} {
			null := attributesOf(t, os.DevNull)
			if r := runAs(t, d, user, `chmod 700 svc/s; touch -d @1 svc/s; `+connect); r.code != 0 || r.out != "over\n" {
				t.Errorf("%s: exit %d, %q, %s", user, r.code, r.out, r.talk)
			}
			if is := attributesOf(t, os.DevNull); is != null {
				t.Errorf("%s: %s was %s and is %s", user, os.DevNull, null, is)
			}
		}
	})
}

// attributesOf returns what a program may change of a file that it does not write to.
func attributesOf(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(info.Mode(), info.ModTime())
}

// TestRunBelievesNoPolicyBehindAClosedFolder has a program change its policy in the working tree, and somebody else close the folder that has the
// note of how it was.
func TestRunBelievesNoPolicyBehindAClosedFolder(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	writeFiles(t, d, 0o644, map[string]string{"tree/egressd.yaml": world.RunPolicy, "tree/.git/HEAD": "", "state/x": ""})
	state := filepath.Join(d.Dir, "state")
	run := func(script string) (code int) {
		cmd := jailed(t.Context(), d, "user", []string{"--config", filepath.Join(d.Dir, "tree", "egressd.yaml")}, "sh", "-c", script)
		cmd.Dir, cmd.Env = filepath.Join(d.Dir, "tree"), append(cmd.Env, "XDG_STATE_HOME="+state, "TMPDIR="+t.TempDir())
		_ = d.World.Gateway.Run(cmd) // the code says it
		return codeOf(cmd.ProcessState)
	}
	if code := run(`echo '  - evil.test' >>egressd.yaml; ! chmod 000 ` + state + `/egressd`); code != 0 {
		t.Fatalf("exit %d: a program closes the folder", code)
	}
	if err := os.Chmod(filepath.Join(state, "egressd"), 0); err != nil { // as somebody else may
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(state, "egressd"), 0o700) })
	if code := run("true"); code != 125 {
		t.Errorf("exit %d with a policy that nobody looked at", code)
	}
}

// TestRunHidesTemporaryLogs has the log of a run that could not write to the usual folder, and a program that makes one for later.
func TestRunHidesTemporaryLogs(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	if err := os.WriteFile(d.Config, []byte(world.RunPolicy), 0o600); err != nil { // which names no folder for the log
		t.Fatal(err)
	}
	temporary := t.TempDir()
	run := func(state, script string) string {
		cmd := jailed(t.Context(), d, "user", nil, "sh", "-c", script)
		cmd.Env = append(cmd.Env, "TMPDIR="+temporary, "XDG_STATE_HOME="+state)
		var out strings.Builder
		cmd.Stdout = &out
		if err := d.World.Gateway.Run(cmd); err != nil {
			t.Error(err)
		}
		return out.String()
	}
	run(d.Dir, `mkdir -p $TMPDIR/egressd-$(id -u)/runs $TMPDIR/egressd-$(id -u)-1/runs`)
	run("/proc/self", "true")
	logs, _ := filepath.Glob(filepath.Join(temporary, "*", "runs", "*"))
	if len(logs) != 1 {
		t.Fatalf("logs: %q", logs)
	}
	if out := run(d.Dir, `ls $TMPDIR/*/runs/* 2>/dev/null; rm -r $TMPDIR/*/runs 2>/dev/null; echo over`); out != "over\n" {
		t.Errorf("the program sees %q", out)
	}
	if _, err := os.Stat(logs[0]); err != nil {
		t.Error(err)
	}
}

// TestRunAsksThoughTheTerminalIsTaken has a program keep others from opening the terminal, and listen on a port.
func TestRunAsksThoughTheTerminalIsTaken(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	writeFiles(t, d, 0o644, map[string]string{"sign-in.py": "import fcntl\nfcntl.ioctl(0, 0x540C) # TIOCEXCL\n" + signIn})
	c := onTerminal(t, d, jailed(t.Context(), d, "user", []string{"-p", "auto"}, "timeout", "20", "python3", "sign-in.py", "127.0.0.1", "43211"))
	c.until("publish it on 127.0.0.1")
	time.Sleep(time.Second) // a key that comes sooner was meant for the program
	c.types("n")
	c.until("no")
	if got := browser(d, "43211", "localhost", 2); got == "signed in" {
		t.Errorf("it was published")
	}
	c.types("\x03")
}
