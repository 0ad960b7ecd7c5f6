package world

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"
)

// A Tunnel is a CONNECT that was let through, and is still open.
type Tunnel struct {
	net.Conn
	R *bufio.Reader
}

func (c *Tunnel) Read(b []byte) (int, error) { return c.R.Read(b) }

// OpenTunnel opens a tunnel; status is what was answered.
func (d *Daemon) OpenTunnel(to, credentials string) (c *Tunnel, status int, err error) {
	conn, err := d.Dial()
	if err != nil {
		return nil, 0, err
	}
	conn.SetDeadline(time.Now().Add(Patience))
	c = &Tunnel{Conn: conn, R: bufio.NewReader(conn)}
	fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", to, to, credentials)
	a, err := ReadAnswer(c.R, http.MethodConnect)
	if err != nil || a.Status != http.StatusOK {
		conn.Close()
	}
	return c, a.Status, err
}

// ConnectStatus returns how a CONNECT is answered.
func (d *Daemon) ConnectStatus(t *testing.T, to string) int {
	t.Helper()
	c, status, err := d.OpenTunnel(to, "")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	return status
}

// MustOpenTunnel opens a tunnel and sends a recorded hello for allowed.test through
// it, so that it carries.
func (d *Daemon) MustOpenTunnel(t *testing.T, to string) *Tunnel {
	t.Helper()
	c, status, err := d.OpenTunnel(to, "")
	if err != nil || status != http.StatusOK {
		t.Fatalf("CONNECT %s: status %d, %v", to, status, err)
	}
	t.Cleanup(func() { c.Close() })
	hello := (&Vector{Hello: "base-allowed.bin"}).FirstBytes(t)[0]
	if _, err := c.Write(hello); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatalf("nothing came through the tunnel to %s: %v", to, err)
	}
	return c
}

// EndsWithin reports whether the tunnel is closed from the other side in time.
func (c *Tunnel) EndsWithin(d time.Duration) bool {
	c.SetReadDeadline(time.Now().Add(d))
	_, err := io.Copy(io.Discard, c.R)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}
