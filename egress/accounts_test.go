package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record/count"
	"github.com/egressd/egressd/sandbox"
)

// TestSandboxesThatAreGoneAreForgotten attaches a thousand networks, each of another
// name, and one that stays, with a flow, while its sandbox is counted.
func TestSandboxesThatAreGoneAreForgotten(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	visit := func(name string) (*sandbox.Attachment, *Flow) {
		stay := w.config.Sandboxes.Attach(policy.Sandbox{Name: name, Kind: "listener"})
		w.Attachments.Begin(stay.ID, nil)
		w.Names.answers.Bind(name, "answered.test", []netip.Addr{peer.Addr.Addr()}, time.Hour)
		f, err := w.Open(t.Context(), sandbox.Peer{Addr: peer.Addr, Listener: stay.Listener()}, ask(t, "127.0.0.1:1"))
		if err != nil {
			t.Fatal(err)
		}
		return stay, f
	}
	stays, open := visit("stays")
	open.Meter().Up.Add(7)
	var last *Flow // of a sandbox that is gone, and whose connection is not
	for i := range 1000 {
		stay, f := visit(fmt.Sprint("visitor-", i))
		w.config.Sandboxes.Detach(stay)
		if i == 0 {
			last = f
		} else {
			f.Close(End{})
		}
		w.Attachments.Drop(stay.ID)
	}
	if n := len(w.accounts.bySandbox); n > 2*accountsSwept {
		t.Errorf("%d accounts are left of a thousand", n)
	}
	bound := 0
	for i := range 1000 {
		if w.Names.answers.Name(fmt.Sprint("visitor-", i), peer.Addr.Addr()) != "" {
			bound++
		}
	}
	if bound > 2*accountsSwept || w.Names.answers.Name("stays", peer.Addr.Addr()) == "" {
		t.Errorf("the names of %d sandboxes are left of a thousand", bound)
	}
	if w.accounts.bySandbox["visitor-0"] == nil || w.accounts.bySandbox["visitor-0"].open != 1 {
		t.Error("who has a flow is forgotten")
	}
	if last.Close(End{}); w.accounts.bySandbox["visitor-0"].open != 0 {
		t.Error("the flow was counted with another")
	}
	if up := w.accounts.of("stays").meter.Up.Load(); up != 7 {
		t.Errorf("what is there has sent %d bytes, want 7", up)
	}
	open.Close(End{})
	w.config.Sandboxes.Detach(stays)
}

// TestAnAccountThatIsGoneCountsNothing has a flow find an account at the moment at which it is
// forgotten.
func TestAnAccountThatIsGoneCountsNothing(t *testing.T) {
	s := new(account)
	p, _, ok, gone := s.charge(0, false, 10)
	if !ok || gone || s.retire() {
		t.Fatal("an account with a flow is gone")
	}
	s.refund(p)
	if !s.names.StartWaiting() || s.retire() {
		t.Fatal("an account of which a question waits is gone")
	}
	s.names.EndWaiting()
	s.repeats.kinds = map[string]*repeatCount{"denied": {more: 1}}
	if s.retire() {
		t.Fatal("an account of which a sum is to be written is gone")
	}
	s.repeats.kinds = nil
	if !s.retire() {
		t.Fatal("an account with nothing is kept")
	}
	if _, _, ok, gone := s.charge(0, false, 10); ok || !gone || s.open != 0 {
		t.Error("what is gone counts")
	}
}

// TestATallyIsBounded counts more hosts than it tells apart, reached and denied.
func TestATallyIsBounded(t *testing.T) {
	var tally Tally
	for i := range 2 * talliedMost {
		host := fmt.Sprintf("h%d.test", i)
		tally.ended(&Flow{request: &policy.Request{Destination: policy.Destination{Host: host}}, decision: undecided}, End{})
		tally.deny(DeniedHost{Host: host}, &count.Counted{Host: host, Action: "deny", Times: 1})
	}
	c := tally.Counts()
	if len(tally.hosts) != talliedMost || c.Requests != 2*talliedMost || len(c.Denied) != talliedMost+1 {
		t.Errorf("%d hosts, %d requests, %d denied hosts", len(tally.hosts), c.Requests, len(c.Denied))
	}
	if first := c.Denied[0]; first.Host != otherHosts || first.Times != talliedMost {
		t.Errorf("all others are %+v", first)
	}
}

// TestSandboxesOfATemplateAreBounded has as many sandboxes of a template as there may be, one of which has a flow open
// for longest. One more takes the place of the one that was idle for longest. With a flow open in each, one more is
// refused, and gets in when one has ended.
func TestSandboxesOfATemplateAreBounded(t *testing.T) {
	w := newWorldOf(t, policy.New(opinion(allow)), audit.Options{}, []sandbox.Entry{{Name: "t-{id}", Token: "s"}, {Name: "u-{id}", Token: "u"}, {Name: "other", Token: "o"}})
	const most = instancesMost / 2 // of one template beside which there is no other
	known := func() int { return len(w.accounts.templates[w.accounts.bySandbox["t-{id}"]].names) }
	search := func(at time.Time) { w.accounts.templates[w.accounts.bySandbox["t-{id}"]].searched = at }
	visit := func(name string) (*Flow, error) {
		password := map[byte]string{'t': "s", 'u': "u", 'o': "o"}[name[0]]
		return w.Open(t.Context(), sandbox.Peer{Addr: peer.Addr, User: name, Password: password, HasCredentials: true}, ask(t, "127.0.0.1:1"))
	}
	must := func(name string) *Flow {
		f, err := visit(name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return f
	}
	open := []*Flow{must("t-0")}
	for i := 1; i < most; i++ {
		must(fmt.Sprint("t-", i)).Close(End{})
	}
	must("t-1").Close(End{}) // t-2 is idle for longest
	if n := known(); n != most {
		t.Fatalf("%d sandboxes of the template are known", n)
	}
	must("t-more").Close(End{})
	for name, want := range map[string]bool{"t-0": true, "t-1": true, "t-2": false, "t-more": true} {
		if got := w.accounts.bySandbox[name] != nil; got != want {
			t.Errorf("%s is known: %v, want %v", name, got, want)
		}
	}
	for i := 1; len(open) < most; i++ {
		open = append(open, must(fmt.Sprint("t-", i)))
	}
	_, err := visit("t-late")
	if r, ok := errors.AsType[*Refusal](err); !ok || r.Decision.Class != policy.TooManyFlows || !strings.Contains(r.Decision.Reason, "t-{id}") {
		t.Errorf("one more is refused with %v", err)
	}
	search(time.Time{})
	w.Refuse(sandbox.Peer{User: "t-late", Password: "s", HasCredentials: true}, policy.ViaConnect, nil, policy.MalformedRequest, "test")
	if n := known(); n != most || w.accounts.bySandbox["t-late"] != nil {
		t.Errorf("%d sandboxes of the template are known, and one more: %v", n, w.accounts.bySandbox["t-late"] != nil)
	}
	must("other").Close(End{})
	must("t-7").Close(End{}) // who has one open may have another
	open[9].Close(End{})
	search(time.Now())
	if _, err := visit("t-late"); err == nil {
		t.Error("idle instances are searched for again at once")
	}
	search(time.Now().Add(-searchEvery))
	must("t-late").Close(End{})
	for i := range most / 2 { // which is its share beside the first template
		must(fmt.Sprint("u-", i))
	}

	if err := w.config.Sandboxes.Set([]sandbox.Entry{{Name: "t-{id}", Token: "new"}}); err != nil {
		t.Fatal(err)
	}
	if up := w.accounts.bySandbox["t-0"]; up == nil || up.open != 1 {
		t.Error("a sandbox of a template that remains is forgotten")
	}
}
