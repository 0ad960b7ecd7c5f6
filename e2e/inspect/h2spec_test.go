package inspect

import (
	"bufio"
	"encoding/xml"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
)

// h2specFails are the checks of h2spec that the inspected side does not pass,
// by group and text, with why. The manual has the same list.
var h2specFails = map[string]string{
	"http2/6.5.3 Sends multiple values of SETTINGS_INITIAL_WINDOW_SIZE": "a SETTINGS frame that holds one setting twice ends the connection, as a flood would",

	"http2/8.1.2.2 Sends a HEADERS frame that contains the connection-specific header field":                     "answered 400, which RFC 9113 §8.1.1 leaves open",
	`http2/8.1.2.2 Sends a HEADERS frame that contains the TE header field with any value other than "trailers"`: "answered 400, which RFC 9113 §8.1.1 leaves open",
}

// TestH2Spec runs h2spec against the inspected side of a tunnel. It knows of
// no proxy: what it dials is a listener that opens a tunnel for each of its
// connections.
func TestH2Spec(t *testing.T) {
	world.Covers(t, "H2-01")
	d := world.StartInspecting(t, "")
	command := world.H2Spec.Path()
	listener := tunnelled(t, d)
	report := filepath.Join(t.TempDir(), "report.xml")
	// /count reads the body first: an origin that answers sooner may be done
	// before the body turns out to be malformed.
	cmd := exec.Command(command, "-S", "-t", "-k", "-o", "2", "-P", "/count", "-h", "allowed.test", "-p", "443", "-j", report)
	var said world.Output
	cmd.Stdout, cmd.Stderr = &said, &said
	began := time.Now()
	if err := d.World.Sandbox.Start(cmd); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer late.Stop()
	cmd.Wait() // its status says that a check failed, and the report which
	listener.Close()
	checks := readReport(t, report)
	t.Logf("%d checks in %v", len(checks), time.Since(began).Round(time.Second))
	judgeChecks(t, checks)
	if t.Failed() {
		t.Logf("h2spec said:\n%s", said.String())
	}
	for _, p := range d.Log.Flawed() {
		t.Errorf("the audit log: %s", p)
	}
}

// judgeChecks compares what failed with what is expected to.
func judgeChecks(t *testing.T, checks []h2specCheck) {
	t.Helper()
	const all = 140 // of h2spec 2.2.1 has 146
	if len(checks) < all {
		t.Errorf("h2spec made %d checks, want %d or more", len(checks), all)
	}
	met := map[string]bool{}
	for _, c := range checks {
		name := c.Package + " " + c.Name
		why, expected := h2specFails[name]
		met[name] = true
		switch failed := c.Failure != nil || c.Error != nil; {
		case c.Skipped != nil:
			t.Errorf("%s was skipped", name)
		case failed && !expected:
			t.Errorf("%s failed", name)
		case !failed && expected:
			t.Errorf("%s passes, and was expected not to: %s", name, why)
		}
	}
	for name := range h2specFails {
		if !met[name] {
			t.Errorf("h2spec has no check %s", name)
		}
	}
}

// An h2specCheck is one row of h2spec's report.
type h2specCheck struct {
	Package string    `xml:"package,attr"`
	Name    string    `xml:"classname,attr"`
	Failure *struct{} `xml:"failure"`
	Error   *struct{} `xml:"error"`
	Skipped *struct{} `xml:"skipped"`
}

func readReport(t *testing.T, path string) (checks []h2specCheck) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Suites []struct {
			Checks []h2specCheck `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(text, &report); err != nil {
		t.Fatal(err)
	}
	for _, s := range report.Suites {
		checks = append(checks, s.Checks...)
	}
	return checks
}

// tunnelled listens in the sandbox where allowed.test is by its hosts file,
// and joins each connection with a tunnel of its own.
func tunnelled(t *testing.T, d *world.Daemon) net.Listener {
	t.Helper()
	for _, change := range []string{"add", "del"} {
		run := func() {
			if out, err := sandboxAddress(d, change); err != nil {
				t.Fatalf("ip address %s: %v: %s", change, err, out)
			}
		}
		if change == "add" {
			run()
		} else {
			t.Cleanup(run)
		}
	}
	l, err := d.World.Sandbox.Listen("tcp", net.JoinHostPort(world.EvilIPv4, "443"))
	if err != nil {
		t.Fatal(err)
	}
	world.Serve(t, l, func(c net.Conn) { join(d, c) })
	return l
}

func sandboxAddress(d *world.Daemon, change string) (string, error) {
	var out strings.Builder
	cmd := exec.Command("ip", "address", change, world.EvilIPv4+"/32", "dev", "lo")
	cmd.Stdout, cmd.Stderr = &out, &out
	err := d.World.Sandbox.Run(cmd)
	return out.String(), err
}

// join carries between a client and a tunnel until both ways have ended.
func join(d *world.Daemon, client net.Conn) {
	c, _, err := d.OpenTunnel("allowed.test:443", "")
	if err != nil {
		return
	}
	defer c.Close()
	c.SetDeadline(time.Time{})
	go func() {
		io.Copy(c.Conn, client)
		c.Conn.(*net.TCPConn).CloseWrite()
	}()
	io.Copy(client, bufio.NewReader(c))
}
