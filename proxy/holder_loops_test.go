package proxy

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// TestEachHolderHasLoopsOfItsOwn as far as the table has room; then the newest shares those of the one that was
// longest idle.
func TestEachHolderHasLoopsOfItsOwn(t *testing.T) {
	var table loopTable
	holder := func(i int) sandbox.Holder { return sandbox.Holder{Sandbox: fmt.Sprint(i)} }
	all := map[*holderLoops]bool{}
	for i := range loopTableMost {
		all[table.find(holder(i), 2)] = true
	}
	if len(all) != loopTableMost {
		t.Errorf("%d holders have %d loops", loopTableMost, len(all))
	}
	first, second := table.find(holder(0), 2), table.of[holder(1)]
	if got := table.find(holder(-1), 2); got != second {
		t.Error("the newest does not share with the one that was longest idle")
	}
	if table.find(holder(0), 2) != first || len(table.of) != loopTableMost {
		t.Errorf("a holder that is there got other loops, or there are %d", len(table.of))
	}
}

// TestClientsOnThisHostShareLoops and those from elsewhere do not.
func TestClientsOnThisHostShareLoops(t *testing.T) {
	w := newWorldOf(t, openPolicy, []sandbox.Entry{
		{Name: "near", Sources: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}},
		{Name: "next", Sources: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}},
	}, nil, nil)
	w.start.Do(w.prepare)
	at := func(addr string) *relay.Loop {
		p := sandbox.Peer{Addr: netip.AddrPortFrom(netip.MustParseAddr(addr), 1), Listener: "tcp"}
		return w.holderLoop(&p, w.Sandboxes.Holder(&p), 0)
	}
	if at("127.0.0.1") != nil || at("::1") != nil || w.holderLoop(&sandbox.Peer{Listener: "unix"}, sandbox.Holder{}, 0) != nil {
		t.Error("a client on this host has a loop of its own")
	}
	near, next, third := at("10.1.0.1"), at("10.2.0.1"), at("10.3.0.1")
	if near == nil || next == nil || third == nil || near == next || near == third || next == third {
		t.Errorf("the loops are %p, %p and %p", near, next, third)
	}
	if at("10.1.2.3") != near || at("10.3.0.1") != third {
		t.Error("a holder has two loops")
	}
}

// TestConnectionsDoNotPileUpAtALoopThatIsHeldUp: those of a sandbox over its quota, and those of a source that give
// way to newer ones.
func TestConnectionsDoNotPileUpAtALoopThatIsHeldUp(t *testing.T) {
	for name, addr := range map[string]string{"of a sandbox": "10.1.0.1:1", "of a source": "10.2.0.1:1"} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOf(t, openPolicy, []sandbox.Entry{{Name: "near", Sources: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}}, nil,
				func(s *Server) { s.Limits.Connections = 4 })
			own, err := w.NewOwnLoop()
			if err != nil {
				t.Fatal(err)
			}
			goOn := make(chan struct{})
			own.loop.Post(func() { <-goOn })
			in := &loopListener{server: w.Server, wayIn: wayIn{name: "tcp"}, fd: -1, loop: own.loop}
			from := sandbox.Peer{Addr: netip.MustParseAddrPort(addr), Listener: "tcp"}
			const many = waitingLeast + 16
			var last *os.File
			for range many {
				fds, err := relay.Pair()
				if err != nil {
					t.Fatal(err)
				}
				last = os.NewFile(uintptr(fds[1]), "client")
				defer last.Close()
				in.handOver(fds[0], from, w.Sandboxes.Holder(&from))
			}
			if n := in.waiting.Load(); n != waitingLeast {
				t.Errorf("%d connections wait", n)
			}
			last.SetReadDeadline(time.Now().Add(20 * time.Second))
			if _, err := last.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
				t.Errorf("one too many was answered %v", err)
			}
			close(goOn)
			settle([]*relay.Loop{own.loop})
			if n := in.waiting.Load(); n != 0 {
				t.Errorf("%d connections wait still", n)
			}
			w.Gate.Records.Settle()
			refused := int64(0)
			for _, r := range w.records(t) {
				if r.Decision != nil && r.Decision.Class == string(policy.TooManyFlows) {
					refused += r.Times()
				}
			}
			if refused < many-4 {
				t.Errorf("%d of %d refusals are recorded", refused, many-4)
			}
		})
	}
}
