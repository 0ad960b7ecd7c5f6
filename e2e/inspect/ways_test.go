package inspect

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
)

// A wayIn is how a request comes to egressd.
type wayIn struct {
	by     string // which way
	within string // what it is sent in: "clear", "HTTP/1" or "HTTP/2" inside TLS
}

// waysIn are all ways in by which a request comes whose head and body egressd reads.
var waysIn = []wayIn{
	{"proxy", "clear"},
	{"CONNECT", "clear"}, {"CONNECT", "HTTP/1"}, {"CONNECT", "HTTP/2"},
	{"SOCKS5", "clear"}, {"SOCKS5", "HTTP/1"}, {"SOCKS5", "HTTP/2"},
	{"captured", "clear"}, {"captured", "HTTP/1"}, {"captured", "HTTP/2"},
}

func (w wayIn) String() string { return w.by + ", " + w.within }

// A rawRequest is what a sandbox sends, byte for byte where HTTP/2 can say it.
type rawRequest struct {
	method, host, target string
	fields               []string // without Host and without a length that is that of the body
	body                 string
}

// parseRequest reads METHOD URL, then a field a line, an empty line and the body. "␊" in a field stands for a line feed.
func parseRequest(t *testing.T, text string) (r rawRequest) {
	t.Helper()
	head, body, _ := strings.Cut(text, "\n\n")
	lines := strings.Split(head, "\n")
	method, url, _ := strings.Cut(lines[0], " ")
	rest, ok := strings.CutPrefix(url, "https://")
	slash := strings.IndexByte(rest, '/')
	if !ok || slash < 0 {
		t.Fatalf("%q is no URL", url)
	}
	r = rawRequest{method: method, host: rest[:slash], target: rest[slash:], body: body}
	framed := false
	for _, line := range lines[1:] {
		r.fields = append(r.fields, strings.ReplaceAll(line, "␊", "\n"))
		name, _, _ := strings.Cut(strings.ToLower(line), ":")
		framed = framed || name == "content-length" || name == "transfer-encoding"
	}
	if !framed && (body != "" || method != "GET") {
		r.fields = append(r.fields, "Content-Length: "+strconv.Itoa(len(body)))
	}
	return r
}

// text is the request as HTTP/1 writes it.
func (r *rawRequest) text(prefix string) string {
	return r.method + " " + prefix + r.target + " HTTP/1.1\r\nHost: " + r.host + "\r\n" + strings.Join(append(r.fields, "", ""), "\r\n") + r.body
}

// send sends the request by a way in and returns the answer. interim: an answer came before the final one.
func (w wayIn) send(t *testing.T, d *world.Daemon, r *rawRequest) (a world.Answer, interim bool, err error) {
	t.Helper()
	c, err := w.dial(d, r.host)
	if err != nil {
		return a, false, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(world.Patience))
	prefix := ""
	if w.by == "proxy" {
		prefix = "http://" + r.host
	}
	if w.within != "clear" {
		protocol := map[string]string{"HTTP/1": "http/1.1", "HTTP/2": "h2"}[w.within]
		inner := tls.Client(c, &tls.Config{ServerName: r.host, RootCAs: d.Trusts(t), NextProtos: []string{protocol}})
		if err := inner.Handshake(); err != nil {
			return a, false, fmt.Errorf("inside: %w", err)
		}
		c = inner
	}
	if w.within == "HTTP/2" {
		a, err = world.AskH2(c, r.text(""))
		if errors.Is(err, world.ErrReset) {
			err = fmt.Errorf("%w: %w", errRefused, err)
		}
		return a, false, err
	}
	// egressd may answer before it has read all, and then ends the connection: the answer counts.
	sent := make(chan error, 1)
	go func() {
		_, err := io.WriteString(c, r.text(prefix))
		sent <- err
	}()
	var came bytes.Buffer
	a, err = world.ReadAnswer(bufio.NewReader(io.TeeReader(c, &came)), r.method)
	c.Close()
	<-sent
	return a, bytes.HasPrefix(came.Bytes(), []byte("HTTP/1.1 1")), err
}

// errRefused: egressd refuses the tunnel in which a request was to come, or its stream of HTTP/2.
var errRefused = errors.New("refused")

// dial connects to port 443 of a host, or to port 80, and to nothing but the proxy if that is the way in.
func (w wayIn) dial(d *world.Daemon, host string) (net.Conn, error) {
	to := host + ":443"
	if w.within == "clear" {
		to = host + ":80"
	}
	switch w.by {
	case "CONNECT":
		c, status, err := d.OpenTunnel(to, "")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%w: the CONNECT is answered %d", errRefused, status)
		}
		return c, err
	case "SOCKS5":
		return dialSOCKS(d, to)
	case "captured":
		return d.DialCaptured(&world.Vector{ID: host, Says: w.within}, to)
	}
	return d.Dial()
}

func dialSOCKS(d *world.Daemon, to string) (net.Conn, error) {
	c, err := d.Dial()
	if err != nil {
		return nil, err
	}
	request, _ := world.SocksRequest(world.WaySOCKS, to)
	reply := make([]byte, 2+10)
	c.SetDeadline(time.Now().Add(world.Patience))
	if _, err := c.Write([]byte{5, 1, 0}); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(c, reply[:2]); err != nil {
		return nil, err
	}
	if _, err := c.Write(request); err != nil {
		return nil, err
	}
	_, err = io.ReadFull(c, reply[2:])
	if err == nil && reply[3] != 0 {
		err = fmt.Errorf("%w: the reply of SOCKS is %d", errRefused, reply[3])
	}
	return c, err
}
