package egress

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

// TestAKeptConnectionIsForTheSameAlone changes one thing of a kept connection at a time.
// What is the same may have it.
func TestAKeptConnectionIsForTheSameAlone(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	to := originSaying(t, "")
	open := func() *Flow {
		f, err := w.Open(t.Context(), peer, ask(t, to))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close(End{}) })
		return f
	}
	first := open()
	if _, err := first.Dial(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept := first.Keep(nil)
	first.Close(End{})
	for says, change := range map[string]func(k *Kept){
		"another sandbox's":       func(k *Kept) { k.sandbox = "another" },
		"to another host":         func(k *Kept) { k.where.Host = "another.test" },
		"to another port":         func(k *Kept) { k.where.Port++ },
		"by another policy":       func(k *Kept) { k.policy = policy.New(opinion(allow)) },
		"to an undecided address": func(k *Kept) { k.dialled = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), k.dialled.Port()) },
	} {
		other := *kept
		change(&other)
		if open().Reuse(&other) {
			t.Errorf("a connection %s was used", says)
		}
	}
	cut := open()
	if _, err := cut.Dial(t.Context()); err != nil {
		t.Fatal(err)
	}
	if cut.cut(); cut.Reuse(kept) || cut.Keep(nil) != nil || cut.Keep(kept.conn) != nil {
		t.Error("a flow that was cut has a connection, or leaves one")
	}
	if !open().Reuse(kept) {
		t.Error("what is the same in all does not get it")
	}
}

// TestAConnectionThatSaysSomethingUnaskedIsNotUsedAgain: it would be taken for the answer to
// the next request.
func TestAConnectionThatSaysSomethingUnaskedIsNotUsedAgain(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	to := "127.0.0.1:" + origin(t)
	var flows [2]*Flow
	for i := range flows {
		var err error
		if flows[i], err = w.Open(t.Context(), peer, ask(t, to)); err != nil {
			t.Fatal(err)
		}
		defer flows[i].Close(End{})
	}
	if _, err := flows[0].Dial(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept := flows[0].Keep(nil)
	defer kept.Close()
	for late := time.Now().Add(10 * time.Second); kept.quiet(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("the greeting is not seen")
		}
	}
	if flows[1].Reuse(kept) {
		t.Error("it was used again")
	}
}

// TestTheLastLookIsRightBeforeTheKernel begins connections to what was not decided, and to what
// may not be begun any more. No address of these leads anywhere.
func TestTheLastLookIsRightBeforeTheKernel(t *testing.T) {
	const nowhere = "255.255.255.255:1" // connect(2) refuses it
	w := newWorld(t, policy.New(opinion(allow)))
	f, err := w.Open(t.Context(), peer, ask(t, "127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(End{})
	to := netip.MustParseAddrPort(nowhere)
	expect := func(want error) {
		t.Helper()
		if _, err := f.dialOne(t.Context(), to); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	expect(errNotJudged)
	f.request.Destination = policy.Destination{Addr: to.Addr(), Port: to.Port()}
	w.ports.Most = 2
	for w.ports.Take(f.Sandbox(), f.Sandbox(), to, 0) { // until it may not
	}
	expect(errPorts)
	if err := w.SetPolicy(t.Context(), policy.New(opinion(deny)), "meanwhile"); err != nil {
		t.Fatal(err)
	}
	expect(errRefused)
}
