package egress

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"

	"github.com/egressd/egressd/record"
)

// An opinion is an evaluator made of a function.
type opinion func(*policy.Request) policy.Decision

func (f opinion) Evaluate(_ context.Context, r *policy.Request) (policy.Decision, error) {
	return f(r), nil
}

func allow(*policy.Request) policy.Decision {
	return policy.Decision{Verdict: policy.Allow, Rule: "test", Layer: policy.User}
}

func deny(*policy.Request) policy.Decision {
	return policy.Decision{Class: policy.RuleDeny, Rule: "test", Layer: policy.User, Reason: "the test says no"}
}

// A zone resolves names to addresses and counts who asked.
type zone struct {
	addrs  map[string][]netip.Addr
	asked  atomic.Int64
	silent chan struct{} // where it is set, nothing is answered before it is closed
}

func (z *zone) Cached(string) ([]netip.Addr, []string, bool) { return nil, nil, false }

func (z *zone) Lookup(_ context.Context, name string) ([]netip.Addr, []string, error) {
	z.asked.Add(1)
	if z.silent != nil {
		<-z.silent
	}
	if addrs, ok := z.addrs[name]; ok {
		return addrs, nil, nil
	}
	return nil, nil, errors.New("no such name")
}

// A world is a gate with its log and its zone.
type world struct {
	*Gate
	dir  string
	zone *zone
}

func newWorld(t *testing.T, p *policy.Policy) *world {
	t.Helper()
	return newWorldOf(t, p, audit.Options{}, nil)
}

func newWorldOf(t *testing.T, p *policy.Policy, o audit.Options, entries []sandbox.Entry) *world {
	t.Helper()
	w := &world{dir: filepath.Join(t.TempDir(), "audit"), zone: &zone{addrs: map[string][]netip.Addr{}}}
	o.Floor = max(o.Floor, 1) // a full disk of the machine is no business of a test
	log, err := audit.Create(w.dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	everybody, err := sandbox.NewDirectory(entries)
	if err != nil {
		t.Fatal(err)
	}
	w.Gate = New(Config{Log: log, Sandboxes: everybody, Resolver: w.zone, FlowsPerSandbox: 8, DialTimeout: 5 * time.Second})
	if p != nil {
		if err := w.SetPolicy(t.Context(), p, "test"); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// records returns what the log holds of one kind, or of every kind for "".
func (w *world) records(t *testing.T, kind record.Kind) (found []record.Record) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, "00000001.log"))
	if err != nil {
		t.Fatal(err)
	}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		var r record.Record
		d := json.NewDecoder(bytes.NewReader(s.Bytes()))
		d.DisallowUnknownFields()
		if err := d.Decode(&r); err != nil {
			t.Fatalf("%v in %s", err, s.Bytes())
		}
		if !record.Canonical(s.Bytes()) {
			t.Errorf("not canonical: %s", s.Bytes())
		}
		if kind == "" || r.Kind == kind {
			found = append(found, r)
		}
	}
	return found
}

func ask(t *testing.T, hostport string) policy.Request {
	t.Helper()
	dst, err := policy.ParseDestination(hostport)
	if err != nil {
		t.Fatal(err)
	}
	return policy.Request{Via: policy.ViaConnect, Destination: dst}
}

var peer = sandbox.Peer{Addr: netip.MustParseAddrPort("127.0.0.1:40000")}

func refusalOf(t *testing.T, err error, class policy.Class) *Refusal {
	t.Helper()
	var r *Refusal
	if !errors.As(err, &r) || r.Decision.Class != class {
		t.Fatalf("got %v, want a refusal of class %s", err, class)
	}
	return r
}

// origin is a server that says hello and repeats what it is told.
func origin(t *testing.T) (port string) {
	t.Helper()
	_, port, _ = net.SplitHostPort(originSaying(t, "hello"))
	return port
}

// originSaying is a server that says something first, or nothing, and repeats what it is
// told.
func originSaying(t *testing.T, first string) (hostport string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
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
			go func() {
				defer c.Close()
				io.WriteString(c, first)
				io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}
