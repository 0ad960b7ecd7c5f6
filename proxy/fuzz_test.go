package proxy

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/answer"
	"github.com/egressd/egressd/proxy/exchange"
	"github.com/egressd/egressd/sandbox"
)

// canonicalOnly denies everything and fails where it is asked about a
// destination that the one parser would not have made.
type canonicalOnly struct{ t *testing.T }

func (c *canonicalOnly) Evaluate(_ context.Context, r *policy.Request) (policy.Decision, error) {
	again, err := policy.ParseDestination(r.Destination.String())
	if err != nil || again.Host != r.Destination.Host || again.Port != r.Destination.Port {
		c.t.Errorf("the policy was asked about %q: %v", r.Destination, err)
	}
	return policy.Decision{Class: policy.RuleDeny, Rule: "fuzz"}, nil
}

// A scripted client has said all it will say.
type scripted struct {
	net.Conn
	said    *bytes.Reader
	replies bytes.Buffer
}

func (s *scripted) Read(b []byte) (int, error)  { return s.said.Read(b) }
func (s *scripted) Write(b []byte) (int, error) { return s.replies.Write(b) }
func (s *scripted) Close() error                { return nil }
func (s *scripted) SetDeadline(time.Time) error { return nil }
func (s *scripted) RemoteAddr() net.Addr        { return &net.TCPAddr{} }
func (s *scripted) LocalAddr() net.Addr         { return &net.TCPAddr{} }

// FuzzSOCKS: whatever a client sends, the handshake ends, what reaches the
// policy is canonical, one record says what became of it, and the replies
// have the form of RFC 1928 and name no address.
func FuzzSOCKS(f *testing.F) {
	for _, request := range []string{
		socksTo("allowed.test", "443"), socksTo("", "80"), socksTo("evil.test\x00.allowed.test", "443"), socksTo("[::1]", "80"), socksTo("127.1", "80"),
		"\x05\x01\x00\x01\x0a\x00\x00\x05\x01\xbb", "\x05\x01\x00\x04\x00\x64\xff\x9b\x00\x00\x00\x00\x00\x00\x00\x00\xa9\xfe\xa9\xfe\x00\x50",
		"\x05\x02\x00\x01\x0a\x00\x00\x05\x01\xbb", "\x05\x03\x00\x03\x01a\x00\x50", "\x05\x01\x00\x09", "\x04\x01\x00\x50\x0a\x00\x00\x05\x00",
	} {
		f.Add([]byte("\x05\x01\x00" + request))
		f.Add([]byte("\x05\x02\x00\x02" + request))
		f.Add([]byte("\x05\x01\x02\x01\x02ci\x05right" + request))
	}
	dir := filepath.Join(f.TempDir(), "audit")
	log, err := audit.Create(dir, audit.Options{Durability: audit.Process, SegmentBytes: 1 << 40})
	if err != nil {
		f.Fatal(err)
	}
	defer log.Close()
	everybody, err := sandbox.NewDirectory(nil)
	if err != nil {
		f.Fatal(err)
	}
	judge := &canonicalOnly{}
	gate := egress.New(egress.Config{Log: log, Sandboxes: everybody})
	if err := gate.SetPolicy(context.Background(), policy.New(judge), "fuzz"); err != nil {
		f.Fatal(err)
	}
	s := &Server{Gate: gate, Sandboxes: everybody}
	s.forwarder.Prepare(gate, everybody, Limits{})
	lines, err := os.Open(filepath.Join(dir, "00000001.log"))
	if err != nil {
		f.Fatal(err)
	}
	defer lines.Close()
	f.Fuzz(func(t *testing.T, said []byte) {
		if len(said) == 0 || said[0] != 5 {
			return
		}
		judge.t = t
		if _, err := lines.Seek(0, io.SeekEnd); err != nil {
			t.Fatal(err)
		}
		c := &scripted{said: bytes.NewReader(said[1:])}
		ctx, cancel := context.WithCancelCause(t.Context())
		of := &conn{server: s, listener: &listener{server: s}, ctx: ctx, cancel: cancel, socket: c, Client: exchange.Client{Forwarder: &s.forwarder, Raw: c, Conn: c, First: said[:1:1]}}
		of.serveSOCKS()
		gate.Records.Settle() // many of a kind would be one record
		written, err := io.ReadAll(lines)
		if n := bytes.Count(written, []byte("\n")); n != 1 || err != nil {
			t.Errorf("%d records, %v: %s", n, err, written)
		}
		checkReplies(t, c.replies.Bytes())
	})
}

// checkReplies takes the replies of one handshake apart.
func checkReplies(t *testing.T, b []byte) {
	t.Helper()
	if len(b) == 0 {
		return
	}
	if len(b) < 2 || b[0] != 5 || b[1] != 0 && b[1] != 2 && b[1] != 0xff {
		t.Fatalf("the method reply is %x", b)
	}
	method := b[1]
	b = b[2:]
	if method == 2 && len(b) >= 2 && b[0] == 1 {
		b = b[2:]
	}
	if len(b) > 0 && (len(b) != 10 || b[0] != 5 || b[1] == answer.SOCKSOK || !bytes.Equal(b[2:], []byte{0, 1, 0, 0, 0, 0, 0, 0})) {
		t.Fatalf("the reply is %x", b)
	}
}
