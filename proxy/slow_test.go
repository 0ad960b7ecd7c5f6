//go:build linux

package proxy

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// A thinker is an evaluator that thinks about the first bytes of sandbox "one", until it is let go.
type thinker struct {
	thought chan struct{} // is sent to when it begins
	done    chan struct{}
	letGo   func()
}

func newThinker() *thinker {
	e := &thinker{thought: make(chan struct{}, 64), done: make(chan struct{})}
	e.letGo = sync.OnceFunc(func() { close(e.done) })
	return e
}

func (e *thinker) Evaluate(ctx context.Context, r *policy.Request) (policy.Decision, error) {
	if r.Sandbox.Name != "one" || r.Protocol == 0 {
		return policy.Decision{Verdict: policy.Abstain}, nil
	}
	e.thought <- struct{}{}
	select {
	case <-e.done:
		return policy.Decision{Verdict: policy.Abstain}, nil
	case <-ctx.Done():
		return policy.Decision{}, ctx.Err()
	}
}

const twoSandboxes = `version: 1
allow: ["allowed.test:*"]
unsafe_allow: ["127.0.0.1:*"]
sandboxes: [{name: one, listen: "127.0.0.1:1"}, {name: two, listen: "127.0.0.1:2"}]
`

// newThinking is a world with a policy that thinks, and two sandboxes on one loop. Sandbox "two"
// comes by the unix listener.
func newThinking(t *testing.T, change func(*Server)) (*world, *thinker) {
	t.Helper()
	e := newThinker()
	w := newWorldOf(t, twoSandboxes, []sandbox.Entry{{Name: "one", Listener: "tcp"}, {Name: "two", Listener: "unix"}}, []policy.Evaluator{e}, change)
	t.Cleanup(e.letGo)
	return w, e
}

// two connects as the other sandbox, and waits for nothing for long.
func (w *world) two(t *testing.T) *testClient {
	t.Helper()
	c, err := net.Dial("unix", w.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	return &testClient{c, bufio.NewReader(c), t}
}

// ways are the ways in by which sandbox "one" opens a tunnel to a port of allowed.test.
var ways = map[string]func(t *testing.T, w *world, port string) *testClient{
	"CONNECT": func(t *testing.T, w *world, port string) *testClient {
		return w.dial(t).send(connectTo("allowed.test", port)).expect(established)
	},
	"SOCKS5": func(t *testing.T, w *world, port string) *testClient {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		ask := string(binary.BigEndian.AppendUint16([]byte("\x05\x01\x00\x03\x0callowed.test"), uint16(n)))
		return w.dial(t).send("\x05\x01\x00").expect("\x05\x00").send(ask).expect("\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00")
	},
	"captured": func(t *testing.T, w *world, port string) *testClient {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		a, err := w.Gate.Names.Bind(t.Context(), sandbox.Peer{Listener: "tcp"}, policy.DNSQuery{Name: "allowed.test", Type: "A"})
		if err != nil {
			t.Fatal(err)
		}
		return w.capturedBy(t, "tcp", netip.AddrPortFrom(a.IPv4, uint16(n)))
	},
}

// TestNobodyNoticesThatAPolicyThinks about the first bytes of a tunnel: not the other tunnels on its
// loop, nor those who open one.
func TestNobodyNoticesThatAPolicyThinks(t *testing.T) {
	for name, open := range ways {
		for says, first := range map[string]string{"a hello": hello(t, "base-allowed"), "another protocol": "\x00\x01\x02\x03"} {
			t.Run(name+" with "+says, func(t *testing.T) {
				t.Parallel()
				w, e := newThinking(t, nil)
				up := echo(t)
				standing := w.two(t).send(connectTo("allowed.test", up.port)).expect(established).send("\x00one").expect("\x00one")
				c := open(t, w, up.port).send(first)
				<-e.thought
				held := time.Now()
				for time.Since(held) < time.Second {
					standing.send("still").expect("still")
					w.two(t).send(connectTo("allowed.test", up.port)).expect(established).send("\x00new").expect("\x00new").Close()
				}
				w.dial(t).send(connectTo("evil.test", up.port)).expect("HTTP/1.1 403") // of the sandbox itself, too
				c.send("behind")
				e.letGo()
				c.expect(first + "behind")
			})
		}
	}
}

// TestWhatHappensWhileAPolicyThinks to the tunnel that it thinks about. Nothing of it goes up.
func TestWhatHappensWhileAPolicyThinks(t *testing.T) {
	for says, row := range map[string]struct {
		limits  Limits
		happens func(t *testing.T, w *world, c *testClient, e *thinker)
		outcome string
	}{
		"the client breaks off": {outcome: "client-left", happens: func(_ *testing.T, _ *world, c *testClient, _ *thinker) {
			c.Conn.(*net.TCPConn).SetLinger(0)
			c.Close()
		}},
		"its time is over": {outcome: "first-bytes-late", limits: Limits{Hello: 300 * time.Millisecond}, happens: func(*testing.T, *world, *testClient, *thinker) {}},
		"the server ends": {outcome: "cut", happens: func(_ *testing.T, w *world, _ *testClient, _ *thinker) {
			ended, now := context.WithCancel(context.Background())
			now()
			w.Shutdown(ended)
		}},
		"an operator cuts it": {outcome: "cut", happens: func(t *testing.T, w *world, _ *testClient, _ *thinker) {
			open, _ := w.Gate.Flows.Page(0, 10)
			for _, f := range open {
				id, _ := record.ParseID(f.ID)
				w.Gate.Flows.Cut(id)
			}
		}},
		"another policy comes": {outcome: "rule-deny", happens: func(t *testing.T, w *world, _ *testClient, e *thinker) {
			parsed, err := file.Parse("test.yaml", []byte(strings.Replace(twoSandboxes, "allow:", "deny:", 1)))
			if err != nil {
				t.Fatal(err)
			}
			p, err := parsed.Compile(file.Environment{})
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Gate.SetPolicy(t.Context(), p, "stricter"); err != nil {
				t.Error(err)
			}
			e.letGo()
		}},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			w, e := newThinking(t, func(s *Server) { s.Limits = row.limits })
			up := newWitness(t, "")
			c := w.dial(t).send(connectTo("allowed.test", up.port)).expect(established).send(hello(t, "base-allowed"))
			<-e.thought
			row.happens(t, w, c, e)
			r := w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindClose })
			if r.Outcome != record.Outcome(row.outcome) && !(says == "another policy comes" && r.Outcome == "cut") || up.got() != "" {
				t.Errorf("recorded %+v, the upstream got %q", r, up.got())
			}
			if r.TLS == nil || r.TLS.SNI != "allowed.test" {
				t.Errorf("the record does not say what was claimed: %+v", r)
			}
		})
	}
}

// TestAClientThatSendsNoMoreIsStillDecided once the policy has thought.
func TestAClientThatSendsNoMoreIsStillDecided(t *testing.T) {
	w, e := newThinking(t, nil)
	up := echo(t)
	c := w.dial(t).send(connectTo("allowed.test", up.port)).expect(established).send("\x00\x01")
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	<-e.thought
	e.letGo()
	if got, err := io.ReadAll(c.in); err != nil || string(got) != "\x00\x01" {
		t.Errorf("read %q, %v", got, err)
	}
}
