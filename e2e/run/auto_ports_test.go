package run

import (
	"errors"
	"fmt"
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

// signIn is a program that waits for a browser on a port of its own choice, which it prints. It ends when there is a file seen.
const signIn = `import http.server, os, socket, sys, time
class Back(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"signed in")
    def log_message(self, *a): pass
if ":" in sys.argv[1]: http.server.HTTPServer.address_family = socket.AF_INET6
s = http.server.HTTPServer((sys.argv[1], int(sys.argv[2])), Back)
print("port", s.server_address[1], flush=True)
s.handle_request()
s.server_close()
print("over", flush=True)
while not os.path.exists("seen"): time.sleep(0.05)
`

// browser asks for a page on the gateway's loopback until it is connected, or for some seconds. Then it is patient: the server answers once.
func browser(d *world.Daemon, port, host string, seconds int) string {
	cmd := exec.Command("curl", "-sS", "-m20", "--retry", "20", "--retry-delay", "0", "--retry-max-time", strconv.Itoa(seconds), "--retry-connrefused", "http://"+host+":"+port+"/")
	var out strings.Builder
	cmd.Stdout = &out
	_ = d.World.Gateway.Run(cmd)
	return out.String()
}

// TestRunPublishesThePortsThatProgramsOpen has a sign-in come back from a browser outside.
func TestRunPublishesThePortsThatProgramsOpen(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	writeFiles(t, d, 0o644, map[string]string{"sign-in.py": signIn})
	taken := hostServer(t, d)
	for _, row := range []struct {
		says, address, port string
		flags               []string
		reached             bool
	}{
		{"on 127.0.0.1", "127.0.0.1", "0", []string{"-p", "auto"}, true},
		{"on all addresses", "0.0.0.0", "0", []string{"-p", "auto"}, true},
		{"on ::1 alone, as Node.js takes localhost", "::1", "0", []string{"-p", "auto"}, true},
		{"without the flag", "127.0.0.1", "0", nil, false},
		{"a port of the host", "127.0.0.1", taken, []string{"-p", "auto"}, false},
	} {
		for user := range world.Users {
			if err := os.RemoveAll(filepath.Join(d.Dir, "seen")); err != nil {
				t.Fatal(err)
			}
			cmd := jailed(t.Context(), d, user, row.flags, "timeout", "40", "python3", "sign-in.py", row.address, row.port)
			var out, talk world.Output
			cmd.Stdout, cmd.Stderr = &out, &talk
			if err := d.World.Gateway.Start(cmd); err != nil {
				t.Fatal(err)
			}
			var port string
			if !world.Eventually(20*time.Second, func() bool { _, err := fmt.Sscanf(out.String(), "port %s\n", &port); return err == nil }) {
				t.Fatalf("%s: %q, %s", row.says, out.String(), talk.String())
			}
			got := browser(d, port, "localhost", map[bool]int{true: 5, false: 2}[row.reached])
			closed := !row.reached || world.Eventually(10*time.Second, func() bool { return !isOpen(d, port) })
			writeFiles(t, d, 0o644, map[string]string{"seen": ""})
			if port == taken && world.Eventually(2*time.Second, func() bool { got = browser(d, port, "localhost", 0); return got == "signed in" }) {
				t.Errorf("%s: %s: the browser reaches it", user, row.says)
			}
			if !row.reached {
				_ = cmd.Process.Signal(syscall.SIGTERM)
			}
			_ = cmd.Wait()
			if !closed {
				t.Errorf("%s: %s: the port is open after the end of the server", user, row.says)
			}
			if reached := got == "signed in" && strings.Contains(out.String(), "over"); reached != row.reached {
				t.Errorf("%s: %s: %q, %q, %s", user, row.says, got, out.String(), talk.String())
			}
			recorded, dropped := false, false
			for _, rec := range lastRun(t, d) {
				recorded = recorded || strings.Contains(rec.Note, "127.0.0.1:"+port+" leads to port "+port)
				dropped = dropped || strings.Contains(rec.Note, "port "+port+" of the sandbox is no longer published")
			}
			if dropped != row.reached {
				t.Errorf("%s: %s: recorded that it is published no longer: %v", user, row.says, dropped)
			}
			if recorded != row.reached {
				t.Errorf("%s: %s: recorded %v", user, row.says, recorded)
			}
			if port != taken && isOpen(d, port) {
				t.Errorf("%s: %s: the port is open after the run", user, row.says)
			}
		}
	}
}

// TestASignInComesBackAgain has tools whose port is always the same: the browser is told to ask 127.0.0.1, as by opencode for MCP
// servers, and the first sign-in is given up, as at 1455, where Codex and others wait.
func TestASignInComesBackAgain(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	writeFiles(t, d, 0o644, map[string]string{"sign-in.py": signIn})
	for user := range world.Users {
		if err := os.RemoveAll(filepath.Join(d.Dir, "seen")); err != nil {
			t.Fatal(err)
		}
		cmd := jailed(t.Context(), d, user, []string{"-p", "auto"}, "sh", "-c", "python3 sign-in.py 127.0.0.1 1455 & read x; kill $!; wait; read x; timeout 60 python3 sign-in.py 127.0.0.1 1455")
		var out, talk world.Output
		cmd.Stdout, cmd.Stderr = &out, &talk
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := d.World.Gateway.Start(cmd); err != nil {
			t.Fatal(err)
		}
		world.WaitFor(t, "the port", func() bool { return isOpen(d, "1455") })
		_, _ = in.Write([]byte("nobody came\n"))
		world.WaitFor(t, "the end of the port", func() bool { return !isOpen(d, "1455") })
		in.Close()
		if got := browser(d, "1455", "127.0.0.1", 5); got != "signed in" {
			t.Errorf("%s: %q, %q, %s", user, got, out.String(), talk.String())
		}
		writeFiles(t, d, 0o644, map[string]string{"seen": ""})
		_ = cmd.Wait()
	}
}

// isOpen reports whether somebody listens on a port of the gateway's loopback, who may reset the connection at once.
func isOpen(d *world.Daemon, port string) bool {
	c, err := d.World.Gateway.Dial("tcp", "127.0.0.1:"+port)
	if err == nil {
		c.Close()
	}
	return !errors.Is(err, syscall.ECONNREFUSED)
}

// TestRunAsksBeforeItPublishes answers at the terminal.
func TestRunAsksBeforeItPublishes(t *testing.T) {
	for key, reached := range map[string]bool{"y": true, "n": false} {
		d := world.NewDaemon(t, world.RunPolicy)
		writeFiles(t, d, 0o644, map[string]string{"sign-in.py": signIn})
		c := onTerminal(t, d, jailed(t.Context(), d, "user", []string{"-p", "auto"}, "timeout", "20", "python3", "sign-in.py", "127.0.0.1", "43210"))
		c.until("publish it on 127.0.0.1")
		time.Sleep(time.Second) // a key that comes sooner was meant for the program
		c.types(key)
		c.until(map[bool]string{true: "yes", false: "no"}[reached])
		if got := browser(d, "43210", "localhost", 5); (got == "signed in") != reached {
			t.Errorf("%q: %q", key, got)
		}
		c.types("\x03")
	}
}
