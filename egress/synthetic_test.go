package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"

	"github.com/egressd/egressd/record"
)

func (w *world) assign(t *testing.T, name string) Assignment {
	t.Helper()
	a, err := w.Assign(t.Context(), peer, policy.Question{Name: name, Type: "A"})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestADeniedNameHasAnAddressToo asks for names under a policy that denies one.
func TestADeniedNameHasAnAddressToo(t *testing.T) {
	w := newWorld(t, policy.New(opinion(func(r *policy.Request) policy.Decision {
		if r.Destination.Host == "evil.test" {
			return deny(r)
		}
		return allow(r)
	})))
	w.config.Synthetic = DefaultSynthetic()
	good, evil := w.assign(t, "good.test"), w.assign(t, "evil.test")
	if good == evil || w.assign(t, "good.test") != good {
		t.Errorf("good.test is %v, evil.test %v", good, evil)
	}
	for name, a := range map[string]Assignment{"good.test": good, "evil.test": evil} {
		for _, addr := range []netip.Addr{a.IPv4, a.IPv6} {
			if got, in := w.Assigned(peer, addr); got != name || !in {
				t.Errorf("%v is %q, %v; want %s", addr, got, in, name)
			}
		}
	}
	var actions []string
	for _, r := range w.records(t, record.KindDNS) {
		if r.Via != "dns" || r.DNS.Type != "A" || r.Dst != nil {
			t.Errorf("recorded %+v", r)
		}
		actions = append(actions, r.DNS.Name+" "+r.Decision.Action)
	}
	if got := fmt.Sprint(actions); got != "[good.test allow evil.test deny good.test allow]" {
		t.Errorf("recorded %s", got)
	}
	if w.zone.asked.Load() != 0 {
		t.Error("a name was resolved")
	}
}

func TestOnlyAddressesCanBeAskedFor(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	w.config.Synthetic = DefaultSynthetic()
	for _, kind := range []string{"TXT", "MX", "ANY", "CH TXT", "HTTPS", ""} {
		_, err := w.Assign(t.Context(), peer, policy.Question{Name: "good.test", Type: kind})
		refusalOf(t, err, policy.DNSTypeDenied)
	}
	if n := len(w.records(t, record.KindDNS)); n != 6 {
		t.Errorf("%d records", n)
	}
}

// TestAddressesOutsideTheRangeStandForNothing looks addresses up that no name has.
func TestAddressesOutsideTheRangeStandForNothing(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	w.config.Synthetic = DefaultSynthetic()
	w.assign(t, "good.test")
	for text, synthetic := range map[string]bool{
		"100.126.255.255": false, "100.128.1.0": false, "93.184.216.34": false, "2d00:6567:7265:7374::100": false, "::1": false,
		"100.127.0.0": true, "100.127.0.1": true, "100.127.0.255": true, "100.127.1.1": true, "100.127.255.255": true,
		"2d00:6567:7265:7373::1": true, "2d00:6567:7265:7373::101": true,
	} {
		if name, in := w.Assigned(peer, netip.MustParseAddr(text)); name != "" || in != synthetic {
			t.Errorf("%s is %q, %v", text, name, in)
		}
	}
	own4, own6 := DefaultSynthetic().Own()
	if own4.String() != "100.127.0.1" || own6.String() != "2d00:6567:7265:7373::1" {
		t.Errorf("the sandbox's own are %v and %v", own4, own6)
	}
}

// TestSandboxesHaveNamesOfTheirOwn asks in two sandboxes.
func TestSandboxesHaveNamesOfTheirOwn(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	w.config.Synthetic = DefaultSynthetic()
	if err := w.config.Sandboxes.Set([]sandbox.Entry{{Name: "a", Listener: "la"}, {Name: "b", Listener: "lb"}}); err != nil {
		t.Fatal(err)
	}
	a, err := w.Assign(t.Context(), sandbox.Peer{Listener: "la"}, policy.Question{Name: "good.test", Type: "A"})
	if err != nil {
		t.Fatal(err)
	}
	if name, in := w.Assigned(sandbox.Peer{Listener: "lb"}, a.IPv4); name != "" || !in {
		t.Errorf("in the other sandbox it is %q, %v", name, in)
	}
	if name, in := w.Assigned(sandbox.Peer{Listener: "lc"}, a.IPv4); name != "" || !in {
		t.Errorf("for a stranger it is %q, %v", name, in)
	}
	_, err = w.Assign(t.Context(), sandbox.Peer{Listener: "lc"}, policy.Question{Name: "good.test", Type: "A"})
	refusalOf(t, err, policy.UnknownSandbox)
}

// TestAnAddressIsNotBoundAgainTooSoon fills a small range.
func TestAnAddressIsNotBoundAgainTooSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bindings
		busy := map[string]bool{}
		now := time.Now()
		assign := func(name string) (uint32, bool) {
			return b.assign(name, 3, now, func() map[string]bool { return busy })
		}
		for i, name := range []string{"a", "b", "c"} {
			if got, ok := assign(name); !ok || got != uint32(i) {
				t.Fatalf("%s has %d, %v", name, got, ok)
			}
		}
		if _, ok := assign("d"); ok {
			t.Error("an address was bound again that may be in use")
		}
		now = now.Add(bindingKept)
		busy["a"] = true
		if got, ok := assign("d"); !ok || got != 1 {
			t.Errorf("d has %d, %v; want that of b: a is busy", got, ok)
		}
		if b.name(1, now) != "d" || b.name(0, now) != "a" || b.name(7, now) != "" {
			t.Error("the names are not as they were bound")
		}
		if _, ok := assign("e"); !ok { // c
			t.Error("the oldest that is free was not bound again")
		}
		if _, ok := assign("f"); ok {
			t.Error("an address was bound again that was used a moment ago")
		}
	})
}

func TestADenialOfTheWayInIsRecorded(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	r := w.Deny(peer, ask(t, "93.184.216.34:443"), policy.UDPDenied, "no datagrams")
	if r.Decision.Class != policy.UDPDenied || r.Decision.Policy == "" {
		t.Errorf("%+v", r)
	}
	records := w.records(t, record.KindOpen)
	if len(records) != 1 || records[0].Decision.Class != "udp-denied" || records[0].Dst.Host != "93.184.216.34" {
		t.Errorf("recorded %+v", records)
	}
}

// TestForeseeingPermitsAndRecordsNothing asks what would happen.
func TestForeseeingPermitsAndRecordsNothing(t *testing.T) {
	w := newWorld(t, policy.New(opinion(func(r *policy.Request) policy.Decision {
		if r.Destination.Port == 443 {
			return allow(r)
		}
		return deny(r)
	})))
	if !w.Foresees(t.Context(), peer, ask(t, "good.test:443")) || w.Foresees(t.Context(), peer, ask(t, "good.test:80")) {
		t.Error("it is not foreseen what is decided")
	}
	if n := len(w.records(t, record.KindOpen)); n != 0 || w.Flows() != 0 || w.zone.asked.Load() != 0 {
		t.Errorf("%d records, %d flows", n, w.Flows())
	}
}

// TestATallyCountsWhatPassedAndWhatDidNot drives a gate as ways in do.
func TestATallyCountsWhatPassedAndWhatDidNot(t *testing.T) {
	w := newWorld(t, policy.New(opinion(func(r *policy.Request) policy.Decision {
		if r.Destination.Host == "evil.test" || r.Destination.Host == "asked.test" {
			return deny(r)
		}
		return allow(r)
	})))
	var tally Tally
	w.config.Tally, w.config.Synthetic = &tally, DefaultSynthetic()
	w.zone.addrs["good.test"] = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	for range 2 {
		f, err := w.Open(t.Context(), peer, ask(t, "good.test:443"))
		if err != nil {
			t.Fatal(err)
		}
		f.Close(End{Up: 10, Down: 100, Outcome: "closed"})
		if _, err := w.Open(t.Context(), peer, ask(t, "evil.test:443")); !errors.As(err, new(*Refusal)) {
			t.Fatal(err)
		}
	}
	w.assign(t, "evil.test")
	w.assign(t, "asked.test")
	w.assign(t, "good.test")
	want := Counts{Requests: 2, Hosts: 1, Up: 20, Down: 200, Denied: []DeniedHost{{"evil.test", 2}, {"asked.test", 1}}}
	if got := tally.Counts(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}
