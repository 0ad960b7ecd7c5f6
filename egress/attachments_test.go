package egress

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"

	"github.com/egressd/egressd/record"
)

// TestAStayIsCutWithItsFlows opens flows of two networks of one sandbox, of which one
// leaves.
func TestAStayIsCutWithItsFlows(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	var first, second Tally
	one, two := w.config.Sandboxes.Attach(policy.Sandbox{Name: "web"}), w.config.Sandboxes.Attach(policy.Sandbox{Name: "web"})
	w.Attachments.Begin(one.ID, &first)
	w.Attachments.Begin(two.ID, &second)
	open := func(s *sandbox.Attachment) (*Flow, error) {
		return w.Open(t.Context(), sandbox.Peer{Listener: s.Listener()}, policy.Request{Via: policy.ViaTransparent, Destination: policy.Destination{Host: "192.0.2.1", Addr: netip.MustParseAddr("192.0.2.1"), Port: 443}})
	}
	left, err := open(one)
	if err != nil {
		t.Fatal(err)
	}
	stays, err := open(two)
	if err != nil {
		t.Fatal(err)
	}
	w.Attachments.Cut(one.ID)
	var refusal *Refusal
	if _, err := open(one); !left.WasCut() || stays.WasCut() || !errors.As(err, &refusal) {
		t.Errorf("cut: %v, %v, %v", left.WasCut(), stays.WasCut(), err)
	}
	if w.Attachments.Flows(one.ID) != 1 || w.Attachments.Flows(two.ID) != 1 {
		t.Errorf("%d and %d flows are open", w.Attachments.Flows(one.ID), w.Attachments.Flows(two.ID))
	}
	left.Close(End{Up: 3})
	stays.Close(End{Up: 4})
	w.Attachments.Drop(one.ID)
	if a, b := first.Counts(), second.Counts(); a.Up != 3 || b.Up != 4 || b.Requests != 1 {
		t.Errorf("counted %+v and %+v", a, b)
	}
	if _, err := open(one); !errors.As(err, &refusal) {
		t.Errorf("after it was dropped: %v", err)
	}
	w.config.Sandboxes.Detach(two)
	if _, err := open(two); !errors.As(err, &refusal) || refusal.Decision.Class != policy.UnknownSandbox {
		t.Errorf("after it was dismissed: %v", err)
	}
}

func TestWhatHappensToASandboxIsRecorded(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	if err := w.Records.NoteSandbox(record.KindStart, policy.Sandbox{Name: "web"}, &policy.Process{PID: 7}, "attached"); err != nil {
		t.Fatal(err)
	}
	all := w.records(t, record.KindStart)
	if len(all) != 1 || all[0].Sandbox != "web" || all[0].Process == nil || all[0].Process.PID != 7 || all[0].Note != "attached" {
		t.Errorf("recorded %+v", all)
	}
}

// TestAStayCountsWhatIsSummed denies as often as is summed.
func TestAStayCountsWhatIsSummed(t *testing.T) {
	w := newWorld(t, policy.New(opinion(deny)))
	var tally Tally
	stay := w.config.Sandboxes.Attach(policy.Sandbox{Name: "web"})
	w.Attachments.Begin(stay.ID, &tally)
	for range 5 * repeatsFrom {
		w.Open(t.Context(), sandbox.Peer{Listener: stay.Listener()}, policy.Request{Via: policy.ViaTransparent, Destination: policy.Destination{Host: "192.0.2.1", Addr: netip.MustParseAddr("192.0.2.1"), Port: 443}})
	}
	c := tally.Counts()
	if len(c.Denied) != 1 || c.Denied[0].Times != 5*repeatsFrom {
		t.Errorf("counted %+v, want %d", c.Denied, 5*repeatsFrom)
	}
}
