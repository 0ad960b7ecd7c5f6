package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
	"go.uber.org/goleak"
)

// TestMain has tests that say so run beside each other, more of them than there are processors:
// they wait for something, and compute little.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// A zone has every name on loopback, two.test twice. slow.test is not answered
// until answer is closed; the others are cached.
type zone struct{ answer chan struct{} }

func (z zone) Cached(name string) ([]netip.Addr, []string, bool) {
	if name == "two.test" {
		return []netip.Addr{loopback, netip.MustParseAddr("127.0.0.2")}, nil, true
	}
	return []netip.Addr{loopback}, nil, name != "slow.test"
}

func (z zone) Lookup(ctx context.Context, name string) ([]netip.Addr, []string, error) {
	select {
	case <-z.answer:
		return []netip.Addr{loopback}, nil, nil
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

var loopback = netip.MustParseAddr("127.0.0.1")

// A world is a server with everything behind it, on loopback.
type world struct {
	*Server
	addr   string
	log    string // directory
	socket string // a unix listener called "unix"
	answer chan struct{}
	from   string // the address that clients connect from, or ""

	logChanged atomic.Pointer[func(error)] // is told when the log fails and goes on
}

const openPolicy = `version: 1
allow: ["allowed.test:*", "slow.test:*"]
unsafe_allow: ["127.0.0.1:*"]
`

func newWorld(t testing.TB, text string, change func(*Server)) *world {
	t.Helper()
	return newWorldOf(t, text, nil, nil, change)
}

// newWorldOf is newWorld for some sandboxes, with opinions beside the text.
func newWorldOf(t testing.TB, text string, who []sandbox.Entry, beside []policy.Evaluator, change func(*Server)) *world {
	t.Helper()
	parsed, err := file.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{log: filepath.Join(t.TempDir(), "audit"), socket: filepath.Join(t.TempDir(), "p")}
	log, err := audit.Create(w.log, audit.Options{Changed: func(err error) {
		if tell := w.logChanged.Load(); tell != nil {
			(*tell)(err)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	everybody, err := sandbox.NewDirectory(who)
	if err != nil {
		t.Fatal(err)
	}
	w.answer = make(chan struct{})
	gate := egress.New(egress.Config{Log: log, Sandboxes: everybody, Resolver: zone{w.answer}, DialTimeout: 5 * time.Second, Placeholders: names.DefaultRange()})
	w.Server = &Server{Gate: gate, Sandboxes: everybody}
	if change != nil {
		change(w.Server)
	}
	p, err := parsed.Compile(file.Environment{Inspection: w.inspector.Page(new(egress.Refusal), "", "") != nil, Evaluators: beside})
	if err != nil {
		t.Fatal(err)
	}
	if err := gate.SetPolicy(t.Context(), p, "test"); err != nil {
		t.Fatal(err)
	}
	w.addr = w.listen(t, "tcp", "127.0.0.1:0")
	w.listen(t, "unix", w.socket)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		w.Shutdown(ctx)
	})
	return w
}

func (w *world) listen(t testing.TB, network, address string) string {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { w.Serve(l, network) })
	t.Cleanup(serving.Wait)
	return l.Addr().String()
}

// records returns what the log holds now.
func (w *world) records(t *testing.T) (all []record.Record) {
	t.Helper()
	segments, err := audit.Segments(w.log)
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	for _, path := range segments {
		some, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, some...)
	}
	for line := range bytes.Lines(text) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it is being written
		}
		var r record.Record
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		all = append(all, r)
	}
	return all
}

// recorded waits for a record that fits: the log is written before an answer
// is sent, but a close record may come after the client saw the end.
func (w *world) recorded(t *testing.T, fits func(record.Record) bool) record.Record {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for _, r := range w.records(t) {
			if fits(r) {
				return r
			}
		}
	}
	t.Fatalf("no such record among %+v", w.records(t))
	return record.Record{}
}

func ended(class string) func(record.Record) bool {
	return func(r record.Record) bool { return r.Kind == record.KindClose && r.Outcome == record.Outcome(class) }
}

// A client is a raw connection to the proxy.
type testClient struct {
	net.Conn
	in *bufio.Reader
	t  testing.TB
}

func (w *world) dial(t testing.TB) *testClient {
	t.Helper()
	from := &net.TCPAddr{IP: net.ParseIP(w.from)}
	c, err := (&net.Dialer{LocalAddr: from}).Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(time.Minute))
	return &testClient{c, bufio.NewReader(c), t}
}

func (c *testClient) send(s string) *testClient {
	c.t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		c.t.Fatal(err)
	}
	return c
}

// expect reads exactly want.
func (c *testClient) expect(want string) *testClient {
	c.t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c.in, got); err != nil || string(got) != want {
		c.t.Fatalf("read %q, %v; want %q", got[:n], err, want)
	}
	return c
}

// rest reads to the end.
func (c *testClient) rest() string {
	c.t.Helper()
	b, err := io.ReadAll(c.in)
	if err != nil {
		c.t.Logf("after %q: %v", b, err)
	}
	return string(b)
}

// An origin is an upstream whose every connection is handed to serve.
type origin struct{ port string }

func newOrigin(t *testing.T, serve func(net.Conn)) *origin {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	var running sync.WaitGroup
	t.Cleanup(func() { l.Close(); running.Wait() })
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.SetDeadline(time.Now().Add(time.Minute))
			running.Go(func() { defer c.Close(); serve(c) })
		}
	})
	return &origin{port: port}
}

// echo is an origin that repeats.
func echo(t *testing.T) *origin {
	return newOrigin(t, func(c net.Conn) { io.Copy(c, c) })
}

// witness is an origin that keeps all it is sent.
type witness struct {
	*origin
	mu   sync.Mutex
	seen bytes.Buffer
}

func newWitness(t *testing.T, answer string) *witness {
	w := &witness{}
	w.origin = newOrigin(t, func(c net.Conn) {
		buf := make([]byte, 4096)
		for {
			n, err := c.Read(buf)
			w.mu.Lock()
			w.seen.Write(buf[:n])
			w.mu.Unlock()
			if n > 0 && answer != "" {
				io.WriteString(c, answer)
			}
			if err != nil {
				return
			}
		}
	})
	return w
}

func (w *witness) got() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen.String()
}
