package world

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

var LastPing = [8]byte{1}

// H2Client is a client of Go's that speaks HTTP/2 through egressd.
func (d *Daemon) H2Client(t *testing.T) *http.Client {
	t.Helper()
	c := d.HTTPClient(nil)
	transport := c.Transport.(*http.Transport)
	transport.DisableKeepAlives = false
	transport.TLSClientConfig.RootCAs = d.Trusts(t)
	transport.ForceAttemptHTTP2 = true
	t.Cleanup(transport.CloseIdleConnections)
	return c
}

// Settled checks the log as a whole, and that everything was given back.
func (d *Daemon) Settled(t *testing.T) {
	t.Helper()
	for _, p := range d.Log.Flawed() {
		t.Errorf("the audit log: %s", p)
	}
	d.oncePerFlow(t)
}

// OpenTLS opens a tunnel to allowed.test and makes TLS in it.
func (d *Daemon) OpenTLS(t *testing.T, change func(*tls.Config)) *tls.Conn {
	t.Helper()
	c, status, err := d.OpenTunnel("allowed.test:443", "")
	if err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v", status, err)
	}
	t.Cleanup(func() { c.Close() })
	config := &tls.Config{ServerName: "allowed.test", RootCAs: d.Trusts(t), NextProtos: []string{"h2"}}
	if change != nil {
		change(config)
	}
	inner := tls.Client(c, config)
	if err := inner.Handshake(); err != nil {
		t.Fatal(err)
	}
	inner.SetDeadline(time.Now().Add(floodPatience))
	return inner
}

const floodPatience = 20 * time.Second

// A Framer is a client that sends whichever frames it likes.
type Framer struct {
	*http2.Framer
	Src    string // its address, as in records
	Conn   *tls.Conn
	block  bytes.Buffer
	pack   *hpack.Encoder
	Stream uint32 // the last one that was opened
	Seen   Seen
	Over   chan struct{} // closed when nothing more comes

	Answered chan struct{} // closed when the last PING was answered
}

// Seen is what came back.
type Seen struct {
	Mu      sync.Mutex
	Resets  map[uint32]http2.ErrCode
	Answers map[uint32]string // statuses
	Goaway  http2.ErrCode
	Told    bool // by a GOAWAY
}

// Frames opens a connection of HTTP/2 and reads all that comes back.
func (d *Daemon) Frames(t *testing.T) *Framer {
	t.Helper()
	conn := d.OpenTLS(t, nil)
	f := &Framer{Conn: conn, Src: conn.LocalAddr().String(), Over: make(chan struct{}), Answered: make(chan struct{})}
	f.Framer = http2.NewFramer(conn, conn)
	f.AllowIllegalWrites = true
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.pack = hpack.NewEncoder(&f.block)
	f.Seen.Resets, f.Seen.Answers = map[uint32]http2.ErrCode{}, map[uint32]string{}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	settled := make(chan struct{})
	go f.read(settled)
	<-settled
	t.Cleanup(func() {
		conn.Close()
		<-f.Over
	})
	return f
}

// read notes what comes back until the connection ends. settled is closed
// when the first frame was there.
func (f *Framer) read(settled chan struct{}) {
	defer close(f.Over)
	for first := true; ; first = false {
		frame, err := f.ReadFrame()
		if first {
			close(settled)
		}
		var stream http2.StreamError
		if err != nil && !errors.As(err, &stream) {
			return
		}
		if p, ok := frame.(*http2.PingFrame); ok && p.Data == LastPing {
			close(f.Answered)
		}
		f.Seen.note(frame)
	}
}

func (s *Seen) note(frame http2.Frame) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	switch frame := frame.(type) {
	case *http2.RSTStreamFrame:
		s.Resets[frame.StreamID] = frame.ErrCode
	case *http2.MetaHeadersFrame:
		s.Answers[frame.StreamID] = frame.PseudoValue("status")
	case *http2.GoAwayFrame:
		s.Goaway, s.Told = frame.ErrCode, true
	}
}

// Encode makes a header block of pairs of names and values.
func (f *Framer) Encode(pairs ...string) []byte {
	f.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		f.pack.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	return bytes.Clone(f.block.Bytes())
}

// RequestFields is the head of an ordinary request, and more.
func RequestFields(path string, more ...string) []string {
	return append([]string{":method", "GET", ":scheme", "https", ":authority", "allowed.test", ":path", path}, more...)
}

// Open opens the next stream, which is complete where end is true.
func (f *Framer) Open(block []byte, end bool) error {
	f.Next()
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: f.Stream, BlockFragment: block, EndStream: end, EndHeaders: true})
}

// Next counts the streams that are opened (RFC 9113 §5.1.1).
func (f *Framer) Next() {
	if f.Stream == 0 {
		f.Stream = 1
		return
	}
	f.Stream += 2
}

// ReplaceField returns the fields of a request with another value in one.
func ReplaceField(name, value string, pairs []string) []string {
	pairs = slices.Clone(pairs)
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i] == name {
			pairs[i+1] = value
		}
	}
	return pairs
}

// Reset reports whether a stream was reset.
func (s *Seen) Reset(id uint32) bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	_, reset := s.Resets[id]
	return reset
}

// Ended reports whether a GOAWAY came.
func (s *Seen) Ended() bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.Told
}

// insidePolicy has requests to one host decided one by one.
const insidePolicy = `version: 1
allow:
  - {host: allowed.test, methods: [GET, HEAD, POST, OPTIONS], paths: ["/**"]}
tls: {ca_dir: ca, extra_roots: [%q]}
`

// StartInspecting runs egressd with insidePolicy and what more has to be said.
func StartInspecting(t *testing.T, more string) *Daemon {
	t.Helper()
	return Start(t, fmt.Sprintf(insidePolicy, Open(t).Origin.Ca.File(t))+more)
}
