package e2e

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
	covers(t, "H2-01")
	d := startInside(t, "")
	command := H2Spec.Path()
	listener := d.tunnelled(t)
	report := filepath.Join(t.TempDir(), "report.xml")
	// /count reads the body first: an origin that answers sooner may be done
	// before the body turns out to be malformed.
	cmd := exec.Command(command, "-S", "-t", "-k", "-o", "2", "-P", "/count", "-h", "allowed.test", "-p", "443", "-j", report)
	var said talk
	cmd.Stdout, cmd.Stderr = &said, &said
	began := time.Now()
	if err := d.world.Sandbox.Start(cmd); err != nil {
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
	for _, p := range d.log.flawed() {
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

// insidePolicy has requests to one host decided one by one.
const insidePolicy = `version: 1
allow:
  - {host: allowed.test, methods: [GET, HEAD, POST, OPTIONS], paths: ["/**"]}
tls: {ca_dir: ca, extra_roots: [%q]}
`

// startInside runs egressd with insidePolicy and what more has to be said.
func startInside(t *testing.T, more string) *daemon {
	t.Helper()
	return start(t, fmt.Sprintf(insidePolicy, theWorld(t).origin.ca.file(t))+more)
}

// tunnelled listens in the sandbox where allowed.test is by its hosts file,
// and joins each connection with a tunnel of its own.
func (d *daemon) tunnelled(t *testing.T) net.Listener {
	t.Helper()
	for _, change := range []string{"add", "del"} {
		run := func() {
			if out, err := d.sandboxAddress(change); err != nil {
				t.Fatalf("ip address %s: %v: %s", change, err, out)
			}
		}
		if change == "add" {
			run()
		} else {
			t.Cleanup(run)
		}
	}
	l, err := d.world.Sandbox.Listen("tcp", net.JoinHostPort(evilIPv4, "443"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go d.join(c)
		}
	}()
	return l
}

func (d *daemon) sandboxAddress(change string) (string, error) {
	var out strings.Builder
	cmd := exec.Command("ip", "address", change, evilIPv4+"/32", "dev", "lo")
	cmd.Stdout, cmd.Stderr = &out, &out
	err := d.world.Sandbox.Run(cmd)
	return out.String(), err
}

// join carries between a client and a tunnel until both ways have ended.
func (d *daemon) join(client net.Conn) {
	defer client.Close()
	c, _, err := d.open("allowed.test:443", "")
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
