package proxy

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

func TestAPlaceCostsNoMemory(t *testing.T) {
	d, err := sandbox.NewDirectory([]sandbox.Entry{{Name: "a", Listener: "a"}, {Name: "b", Token: "secret"}})
	if err != nil {
		t.Fatal(err)
	}
	p, at := &fair.Connections[sandbox.Holder]{Most: 12}, new(fair.Admission)
	for _, peer := range []sandbox.Peer{{Listener: "a"}, {Listener: "b"}} {
		if got := testing.AllocsPerRun(100, func() {
			h := d.Holder(&peer)
			p.Acquire(at, h.Sandbox, h, nil)
			p.Release(at)
		}); got != 0 {
			t.Errorf("%s: %v allocations", peer.Listener, got)
		}
	}
}

// sharedWorld has sandboxes with listeners of their own, "first" and "second", and two
// that are told by their tokens, of 8 connections in all.
func sharedWorld(t *testing.T) (w *world, listeners map[string]string) {
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait) // behind the server's end
	listed := "sandboxes: [{name: first, token_file: x}, {name: second, token_file: x}, {name: third, token_file: x}, {name: fourth, token_file: x}]\n"
	w = newWorld(t, openPolicy+listed, func(s *Server) {
		s.Limits.Connections = 8
		s.lingerTime = time.Hour
		if err := s.Sandboxes.Set([]sandbox.Entry{
			{Name: "first", Listener: "first"}, {Name: "second", Listener: "second"},
			{Name: "third", Token: "third"}, {Name: "fourth", Token: "fourth"},
		}); err != nil {
			t.Fatal(err)
		}
	})
	listeners = map[string]string{}
	for _, name := range []string{"first", "second", "shared"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		serving.Go(func() { w.Serve(l, name) })
		listeners[name] = l.Addr().String()
	}
	return w, listeners
}

// hoard opens connections, says text on each, and waits until they were all seen to.
func (w *world) hoard(t *testing.T, addr, text string, n int) (all []net.Conn) {
	t.Helper()
	for range n {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprint(c, text)
		all = append(all, c)
	}
	w.recorded(t, func(r record.Record) bool {
		return r.Decision != nil && r.Decision.Class == string(policy.TooManyFlows)
	})
	return all
}

func asUser(name, target, port string) string {
	proof := base64.StdEncoding.EncodeToString([]byte(name + ":" + name))
	return fmt.Sprintf("CONNECT %s:%s HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic %s\r\n\r\n", target, port, proof)
}

func dialAt(t *testing.T, addr string) *testClient {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return &testClient{c, bufio.NewReader(c), t}
}

// TestOneSandboxCannotTakeAllConnections has one sandbox hold all that it can, in each
// way that costs it least, and another come by its own listener or token.
func TestOneSandboxCannotTakeAllConnections(t *testing.T) {
	for _, row := range []struct{ says, at, text, then, request string }{
		{"silent at a listener of its own", "first", "", "second", ""},
		{"silent at one that others have too", "shared", "", "shared", "fourth"},
		{"half a head there", "shared", "CONNECT allowed.test:443 HTT", "shared", "fourth"},
		{"half a greeting of SOCKS there", "shared", "\x05", "shared", "fourth"},
		{"half of its credentials for SOCKS", "shared", "\x05\x01\x02\x01\x05th", "shared", "fourth"},
		{"half a plain request", "shared", "GET http://allowed.test/ HTTP/1.1\r\nHost: a", "shared", "fourth"},
		{"silent at one that others have, for who has its own", "shared", "", "first", ""},
	} {
		t.Run(row.says, func(t *testing.T) {
			w, at := sharedWorld(t)
			o := echo(t)
			w.hoard(t, at[row.at], row.text, 20)
			request := connectTo("allowed.test", o.port)
			if row.request != "" {
				request = asUser(row.request, "allowed.test", o.port)
			}
			first := hello(t, "base-allowed")
			dialAt(t, at[row.then]).send(request).expect(established).send(first).expect(first)
		})
	}
}

// TestWhoAwaitsANameGivesWay has connections come by SOCKS to an address whose name is awaited. They count with the address that
// others share.
func TestWhoAwaitsANameGivesWay(t *testing.T) {
	_, at := sharedWorld(t)
	o := echo(t)
	for range 4 {
		c := dialAt(t, at["shared"]).send("\x05\x01\x02\x01\x05third\x05third" + socksTo("93.184.216.34", "443"))
		c.expect("\x05\x02\x01\x00" + string(socksReply(0)))
	}
	first := hello(t, "base-allowed")
	dialAt(t, at["shared"]).send(asUser("fourth", "allowed.test", o.port)).expect(established).send(first).expect(first)
}

// TestTokensHoldPlacesOfTheirOwn has what a sandbox has shown its token for count
// against itself, and stay when others come from the same address.
func TestTokensHoldPlacesOfTheirOwn(t *testing.T) {
	w, at := sharedWorld(t)
	o, first := echo(t), hello(t, "base-allowed")
	mine := dialAt(t, at["shared"]).send(asUser("fourth", "allowed.test", o.port)).expect(established)
	w.hoard(t, at["shared"], asUser("third", "allowed.test", o.port), 20)
	w.hoard(t, at["shared"], "", 20)
	mine.send(first).expect(first)
	dialAt(t, at["shared"]).send(asUser("fourth", "allowed.test", o.port)).expect(established)
	if got := w.connections.Held("third", sandbox.Holder{}); got > 4 {
		t.Errorf("one sandbox has %d of 8 connections", got)
	}
}
