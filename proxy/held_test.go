//go:build linux

package proxy

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// TestAnEndDecidesWhatWasHeld: first bytes that could begin something else go on when the client ends its side, at once
// or later. What ZooKeeper's and others' clients send are such bytes.
func TestAnEndDecidesWhatWasHeld(t *testing.T) {
	for way, open := range ways {
		for _, said := range []string{"ruok", "z", "stat", "\x16", "\x16\x03\x01\x02\x00", "GET", "abcdefghijklmnopqrst"} {
			for says, pause := range map[string]time.Duration{"at once": 0, "later": 300 * time.Millisecond} {
				t.Run(way+" "+said+" "+says, func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, openPolicy, nil)
					up := newOrigin(t, func(c net.Conn) {
						all, _ := io.ReadAll(c)
						io.WriteString(c, "got "+string(all))
					})
					c := open(t, w, up.port).send(said)
					time.Sleep(pause)
					if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
						t.Fatal(err)
					}
					if got := c.rest(); got != "got "+said {
						t.Errorf("read %q", got)
					}
					r := w.recorded(t, ended("closed"))
					if r.Bytes.Up != int64(len(said)) {
						t.Errorf("recorded %+v", r.Bytes)
					}
				})
			}
		}
	}
}

// TestAnEndOpensNothingOnTheWebsPorts: there, bytes that are neither TLS nor HTTP are refused, whole or not.
func TestAnEndOpensNothingOnTheWebsPorts(t *testing.T) {
	for _, said := range []string{"z", "\x16\x03\x01\x02\x00"} {
		w := newWorld(t, openPolicy, nil)
		w.start.Do(w.prepare) // or wait for who does
		flow, err := w.Gate.Open(t.Context(), sandbox.Peer{Listener: "tcp"}, policy.Request{Via: policy.ViaConnect, Destination: policy.Destination{Host: "allowed.test", Port: 443}})
		if err != nil {
			t.Fatal(err)
		}
		client, server := pair(t)
		upstream, origin := pair(t)
		c := &conn{server: w.Server, listener: &listener{}, socket: server, replier: connectReplier{}, flow: flow}
		c.Conn, c.Raw = server, server
		c.ctx, c.cancel = context.WithCancelCause(t.Context())
		w.connections.Acquire(&c.admission, "default", sandbox.Holder{}, c)
		io.WriteString(client, said)
		client.(*net.TCPConn).CloseWrite()
		c.beginTunnel(upstream)
		if got, err := io.ReadAll(origin); len(got) > 0 {
			t.Errorf("the origin got %q, %v", got, err)
		}
		if r := w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindClose }); r.Decision.Class != string(policy.NotTLS) {
			t.Errorf("%q: recorded %+v", said, r.Decision)
		}
	}
}

// pair returns the two ends of a connection on loopback.
func pair(t *testing.T) (one, other net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if one, err = net.Dial("tcp", l.Addr().String()); err == nil {
		other, err = l.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { one.Close(); other.Close() })
	return one, other
}

// slowPlaces are what a connection of sandbox "one" waits for: a name server, a person, or the policy.
var slowPlaces = map[string]struct {
	policy, host string
	waits        func(t *testing.T, w *world)
}{
	"a name": {"allow: [\"allowed.test:*\", \"slow.test:*\"]\n", "slow.test", func(t *testing.T, w *world) {
		w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindDNS })
	}},
	"a person": {"allow: [\"allowed.test:*\"]\nask: [\"asked.test:*\"]\n", "asked.test", func(t *testing.T, w *world) { w.asked(t, 1) }},
}

// TestNobodyNoticesThatAnotherWaits for a second: neither an established tunnel nor a new connection of another sandbox.
func TestNobodyNoticesThatAnotherWaits(t *testing.T) {
	for what, row := range slowPlaces {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			text := "version: 1\nunsafe_allow: [\"127.0.0.1:*\"]\n" + row.policy + "sandboxes: [{name: one, listen: \"127.0.0.1:1\"}, {name: two, listen: \"127.0.0.1:2\"}]\n"
			w := newWorldOf(t, text, []sandbox.Entry{{Name: "one", Listener: "tcp"}, {Name: "two", Listener: "unix"}}, nil, nil)
			w.Gate.Approvals.Open(true, time.Minute)
			up := echo(t)
			standing := w.two(t).send(connectTo("allowed.test", up.port)).expect(established).send("\x00one").expect("\x00one")
			w.dial(t).send(connectTo(row.host, up.port))
			row.waits(t, w)
			for held := time.Now(); time.Since(held) < time.Second; {
				began := time.Now()
				standing.send("still").expect("still")
				w.two(t).send(connectTo("allowed.test", up.port)).expect(established).send("\x00new").expect("\x00new").Close()
				if took := time.Since(began); took > 500*time.Millisecond {
					t.Errorf("it took %v", took)
				}
			}
			close(w.answer)
		})
	}
}

// TestAResetIsPassedOnAsOne, both ways, and also by a client that has ended its side before.
func TestAResetIsPassedOnAsOne(t *testing.T) {
	for way, open := range ways {
		t.Run("of the upstream, "+way, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, openPolicy, nil)
			up := newOrigin(t, func(c net.Conn) {
				io.ReadFull(c, make([]byte, 4))
				c.(*net.TCPConn).SetLinger(0)
			})
			c := open(t, w, up.port).send("\x00123")
			if _, err := io.ReadAll(c.in); err == nil || !strings.Contains(err.Error(), "reset") {
				t.Errorf("the client saw %v", err)
			}
			w.recorded(t, ended("reset"))
		})
		for says, half := range map[string]bool{"": false, " that has ended its side": true} {
			t.Run("of a client"+says+", "+way, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, openPolicy, nil)
				saw := make(chan error, 1)
				up := newOrigin(t, func(c net.Conn) {
					_, err := io.ReadAll(c)
					if half && err == nil { // by its end; the reset comes behind
						for err == nil {
							_, err = c.Write([]byte("x"))
							time.Sleep(10 * time.Millisecond)
						}
					}
					saw <- err
				})
				c := open(t, w, up.port).send("\x00123")
				tcp := c.Conn.(*net.TCPConn)
				if half {
					tcp.CloseWrite()
				}
				tcp.SetLinger(0)
				tcp.Close()
				if err := <-saw; err == nil || !strings.Contains(err.Error(), "reset") && !strings.Contains(err.Error(), "broken pipe") {
					t.Errorf("the upstream saw %v", err)
				}
				w.recorded(t, ended("reset"))
			})
		}
	}
}

// TestAClientThatLeavesWhileItIsDialledFreesItsPlace within a second, long before the dial is given up.
func TestAClientThatLeavesWhileItIsDialledFreesItsPlace(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	port := silent(t)
	c := w.dial(t).send(connectTo("allowed.test", port))
	w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindOpen })
	began := time.Now()
	c.Close()
	w.recorded(t, ended("client-left"))
	if took := time.Since(began); took > 3*time.Second { // of the five that a dial may take
		t.Errorf("it was noticed after %v", took)
	}
}
