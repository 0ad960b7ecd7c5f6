package proxy

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// claimsPolicy opens a name, which the tests' zone has at 127.0.0.1, and an address beside it.
const claimsPolicy = openPolicy + "deny: [\"evil.test:*\"]\n"

// A silentEvaluator has no opinion, and takes its time.
type silentEvaluator struct{}

func (silentEvaluator) Evaluate(context.Context, *policy.Request) (policy.Decision, error) {
	time.Sleep(5 * time.Millisecond)
	return policy.Decision{Verdict: policy.Abstain}, nil
}

// beside is a witness at 127.0.0.2, with a port. It says banner first.
func beside(t *testing.T, port, banner string) *witness {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.2:"+port)
	if err != nil {
		t.Fatal(err)
	}
	w := &witness{}
	var running sync.WaitGroup
	t.Cleanup(func() { l.Close(); running.Wait() })
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, banner)
			running.Go(func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(time.Minute))
				all, _ := io.ReadAll(c)
				w.mu.Lock()
				defer w.mu.Unlock()
				w.seen.Write(all)
			})
		}
	})
	return w
}

// claimsWorld has a rule for 127.0.0.2, too.
func claimsWorld(t *testing.T, opinions ...policy.Evaluator) *world {
	t.Helper()
	return newWorldOf(t, strings.Replace(claimsPolicy, `unsafe_allow: [`, `unsafe_allow: ["127.0.0.2:*", `, 1), nil, opinions, nil)
}

// TestATunnelToAnAddressGoesToTheHostThatIsClaimed, although a rule names the address: that one gets a connection on
// which nothing is said.
func TestATunnelToAnAddressGoesToTheHostThatIsClaimed(t *testing.T) {
	first := hello(t, "base-allowed")
	for says, row := range map[string]struct {
		begin, answer string
		opinions      []policy.Evaluator
	}{
		"CONNECT":                       {"CONNECT", established, nil},
		"SOCKS5":                        {"SOCKS", "", nil},
		"a policy that takes its time":  {"CONNECT", established, []policy.Evaluator{silentEvaluator{}}},
		"SOCKS5, which takes its time":  {"SOCKS", "", []policy.Evaluator{silentEvaluator{}}},
		"a hello in one piece with it":  {"eager", established, nil},
		"and again, with such a policy": {"eager", established, []policy.Evaluator{silentEvaluator{}}},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			w, o := claimsWorld(t, row.opinions...), echo(t)
			address := beside(t, o.port, "")
			c := w.dial(t)
			switch row.begin {
			case "SOCKS":
				c.send(socksHello + socksTo("127.0.0.2", o.port)).expect("\x05\x00" + string(socksReply(0))).send(first)
			case "eager":
				c.send(connectTo("127.0.0.2", o.port) + first).expect(row.answer)
			default:
				c.send(connectTo("127.0.0.2", o.port)).expect(row.answer).send(first)
			}
			c.expect(first).send("more").expect("more").Close()
			r := w.recorded(t, func(r record.Record) bool {
				return r.Kind == record.KindClose && r.Dst != nil && r.Dst.Host == "allowed.test"
			})
			if r.Dst.Asked != "127.0.0.2" || r.Dst.Addr != "127.0.0.1" || r.Bytes.Up != int64(len(first)+4) || r.Decision.Action != "allow" {
				t.Errorf("recorded %+v %+v", r.Dst, r.Bytes)
			}
			r = w.recorded(t, ended("named"))
			if r.Dst.Host != "127.0.0.2" || r.Dst.Asked != "" || r.Bytes != nil && r.Bytes.Up+r.Bytes.Down != 0 {
				t.Errorf("recorded %+v %+v", r.Dst, r.Bytes)
			}
			w.settled(t)
			if got := address.got(); got != "" {
				t.Errorf("the address got %q", got)
			}
		})
	}
}

// TestAClaimDoesNotMoveATunnelInWhichSomethingPassed: its server has spoken first.
func TestAClaimDoesNotMoveATunnelInWhichSomethingPassed(t *testing.T) {
	w, o := claimsWorld(t), newWitness(t, "")
	address := beside(t, o.port, "220 hello\r\n")
	c := w.dial(t).send(connectTo("127.0.0.2", o.port)).expect(established).expect("220 hello\r\n")
	if got := c.send(hello(t, "base-allowed")).rest(); got != string(accessDenied) {
		t.Errorf("read %q", got)
	}
	r := w.recorded(t, ended(string(policy.NameMismatch)))
	if r.Dst.Host != "127.0.0.2" || r.TLS == nil || r.TLS.SNI != "allowed.test" || address.got()+o.got() != "" {
		t.Errorf("recorded %+v %+v; the address got %q, the name %q", r.Dst, r.TLS, address.got(), o.got())
	}
}

// TestAClaimThatIsDenied is answered in the tunnel, by the rule for the name, with the address that was asked for.
func TestAClaimThatIsDenied(t *testing.T) {
	w, o := claimsWorld(t), newWitness(t, "")
	address := beside(t, o.port, "")
	if got := w.dial(t).send(connectTo("127.0.0.2", o.port)).expect(established).send(hello(t, "base-evil")).rest(); got != string(accessDenied) {
		t.Errorf("read %q", got)
	}
	r := w.recorded(t, func(r record.Record) bool { return r.Decision != nil && r.Decision.Action == "deny" })
	if r.Kind != record.KindOpen || r.Dst.Host != "evil.test" || r.Dst.Asked != "127.0.0.2" || r.Decision.Class != string(policy.RuleDeny) {
		t.Errorf("recorded %s %+v %+v", r.Kind, r.Dst, r.Decision)
	}
	w.settled(t)
	if n := w.count(t, func(r record.Record) bool { return r.Decision != nil && r.Decision.Action == "deny" }); n != 1 || address.got()+o.got() != "" {
		t.Errorf("%d records refuse it; the address got %q, the name %q", n, address.got(), o.got())
	}
}

// TestASecondHelloNamesTheClaimedHostToo, once a tunnel to an address went to a host.
func TestASecondHelloNamesTheClaimedHostToo(t *testing.T) {
	first := hello(t, "base-allowed")
	o := newOrigin(t, func(c net.Conn) {
		io.ReadFull(c, make([]byte, len(first)))
		io.WriteString(c, retryRequest)
		io.Copy(io.Discard, c)
	})
	w := claimsWorld(t)
	beside(t, o.port, "")
	c := w.dial(t).send(connectTo("127.0.0.2", o.port)).expect(established).send(first).expect(retryRequest)
	if got := c.send(hello(t, "base-evil")).rest(); got != string(accessDenied) {
		t.Errorf("read %q", got)
	}
	if r := w.recorded(t, ended(string(policy.NameMismatch))); r.Dst.Host != "allowed.test" || r.TLS.SNI != "evil.test" {
		t.Errorf("recorded %+v %+v", r.Dst, r.TLS)
	}
}

// TestAClientThatLeavesWhileItsClaimIsDecided leaves nothing behind.
func TestAClientThatLeavesWhileItsClaimIsDecided(t *testing.T) {
	for range 20 {
		w, o := claimsWorld(t, silentEvaluator{}), echo(t)
		beside(t, o.port, "")
		c := w.dial(t).send(connectTo("127.0.0.2", o.port)).expect(established).send(hello(t, "base-allowed"))
		c.Conn.(*net.TCPConn).SetLinger(0)
		c.Close()
		w.settled(t)
	}
}
