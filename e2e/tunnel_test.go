package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// A tunnel is a CONNECT that was let through, and is still open.
type tunnel struct {
	net.Conn
	r *bufio.Reader
}

func (c *tunnel) Read(b []byte) (int, error) { return c.r.Read(b) }

// open opens a tunnel; status is what was answered.
func (d *daemon) open(to, credentials string) (c *tunnel, status int, err error) {
	conn, err := d.dial()
	if err != nil {
		return nil, 0, err
	}
	conn.SetDeadline(time.Now().Add(patience))
	c = &tunnel{Conn: conn, r: bufio.NewReader(conn)}
	fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", to, to, credentials)
	a, err := readAnswer(c.r, http.MethodConnect)
	if err != nil || a.status != http.StatusOK {
		conn.Close()
	}
	return c, a.status, err
}

// status returns how a CONNECT is answered.
func (d *daemon) status(t *testing.T, to string) int {
	t.Helper()
	c, status, err := d.open(to, "")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	return status
}

// mustOpen opens a tunnel and sends a recorded hello for allowed.test through
// it, so that it carries.
func (d *daemon) mustOpen(t *testing.T, to string) *tunnel {
	t.Helper()
	c, status, err := d.open(to, "")
	if err != nil || status != http.StatusOK {
		t.Fatalf("CONNECT %s: status %d, %v", to, status, err)
	}
	t.Cleanup(func() { c.Close() })
	hello := (&vector{Hello: "base-allowed.bin"}).firstBytes(t)[0]
	if _, err := c.Write(hello); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatalf("nothing came through the tunnel to %s: %v", to, err)
	}
	return c
}

// endsWithin reports whether the tunnel is closed from the other side in time.
func (c *tunnel) endsWithin(d time.Duration) bool {
	c.SetReadDeadline(time.Now().Add(d))
	_, err := io.Copy(io.Discard, c.r)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// TestIdleTunnelEnds leaves a tunnel alone until egressd gives it up.
func TestIdleTunnelEnds(t *testing.T) {
	covers(t, "LC-12")
	d := start(t, policyText(t, "P0")+"limits: {idle_timeout: 2s}\n")
	idle := d.mustOpen(t, "allowed.test:443")
	if idle.endsWithin(500 * time.Millisecond) {
		t.Error("the tunnel ended before its time")
	}
	if !idle.endsWithin(patience) {
		t.Error("the tunnel was not given up")
	}
	if r := d.closeRecord(t, idle.LocalAddr().String()); !strings.Contains(r.Outcome, "idle") {
		t.Errorf("the close record says %q", r.Outcome)
	}
}
