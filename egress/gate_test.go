package egress

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/egressd/egressd/policy"

	"github.com/egressd/egressd/record"
)

func TestAGateWithoutAPolicyRefuses(t *testing.T) {
	w := newWorld(t, nil)
	_, err := w.Open(t.Context(), peer, ask(t, "allowed.test:443"))
	refusalOf(t, err, policy.PolicyNotLoaded)
}

func TestADeniedNameIsNeverResolved(t *testing.T) {
	w := newWorld(t, policy.New(opinion(deny)))
	_, err := w.Open(t.Context(), peer, ask(t, "evil.test:443"))
	r := refusalOf(t, err, policy.RuleDeny)
	if n := w.zone.asked.Load(); n != 0 {
		t.Errorf("the name was looked up %d times", n)
	}
	opens := w.records(t, record.KindOpen)
	if len(opens) != 1 || opens[0].Decision.Action != "deny" || opens[0].Flow != r.ID.String() || opens[0].Dst.Host != "evil.test" {
		t.Errorf("records: %+v", opens)
	}
}

func TestAnAllowedFlowIsRecordedDialledAndClosed(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	w.zone.addrs["allowed.test"] = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	f, err := w.Open(t.Context(), peer, ask(t, "allowed.test:"+origin(t)))
	if err != nil {
		t.Fatal(err)
	}
	if opens := w.records(t, record.KindOpen); len(opens) != 1 || opens[0].Decision.Action != "allow" {
		t.Fatalf("before the dial the log holds %+v", opens)
	}
	conn, err := f.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(io.LimitReader(conn, 5)); string(got) != "hello" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	f.Close(End{Up: 3, Down: 5, Outcome: "closed"})
	f.Close(End{Up: 99, Outcome: "twice"})
	closes := w.records(t, record.KindClose)
	if len(closes) != 1 || closes[0].Bytes.Down != 5 || closes[0].Dst.Addr != "127.0.0.1" || closes[0].Outcome != "closed" {
		t.Errorf("close records: %+v", closes)
	}
	if w.Flows.Count() != 0 {
		t.Error("the flow is still open")
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the connection outlived its flow: %v", err)
	}
}

func TestTheQueryIsRecordedBeforeItIsSent(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	_, err := w.Open(t.Context(), peer, ask(t, "nowhere.test:443"))
	refusalOf(t, err, policy.NetworkDNS)
	all := w.records(t, "")
	kinds := make([]record.Kind, len(all))
	for i, r := range all {
		kinds[i] = r.Kind
	}
	if want := []record.Kind{record.KindPolicy, record.KindDNS, record.KindOpen, record.KindClose}; !slices.Equal(kinds, want) {
		t.Errorf("recorded %v, want %v", kinds, want)
	}
}

func TestOneRefusedAddressRefusesTheName(t *testing.T) {
	private := netip.MustParseAddr("10.0.0.5")
	w := newWorld(t, policy.New(opinion(func(r *policy.Request) policy.Decision {
		if slices.Contains(r.Destination.Addrs, private) {
			return policy.Decision{Class: policy.AddressDenied, AddressClass: "private"}
		}
		return allow(r)
	})))
	w.zone.addrs["mixed.test"] = []netip.Addr{netip.MustParseAddr("127.0.0.1"), private}
	_, err := w.Open(t.Context(), peer, ask(t, "mixed.test:443"))
	refusalOf(t, err, policy.AddressDenied)
	if opens := w.records(t, record.KindOpen); len(opens) != 1 || opens[0].Dst.Class != "private" || len(opens[0].Dst.Addrs) != 2 {
		t.Errorf("records: %+v", opens)
	}
}

func TestOnlyJudgedAddressesAreDialled(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	f, err := w.Open(t.Context(), peer, ask(t, "127.0.0.1:"+origin(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(End{})
	other := netip.MustParseAddrPort("127.0.0.2:80")
	if err := f.judged(other); !errors.Is(err, errNotJudged) {
		t.Errorf("judged(%s) = %v", other, err)
	}
	if _, err := f.dialOne(t.Context(), other); !errors.Is(err, errNotJudged) {
		t.Errorf("dialOne(%s) = %v", other, err)
	}
}

func TestFlowsPerSandboxAreLimited(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	var open []*Flow
	for range 8 {
		f, err := w.Open(t.Context(), peer, ask(t, "93.184.216.34:443"))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, f)
	}
	_, err := w.Open(t.Context(), peer, ask(t, "93.184.216.34:443"))
	refusalOf(t, err, policy.TooManyFlows)
	open[0].Close(End{})
	f, err := w.Open(t.Context(), peer, ask(t, "93.184.216.34:443"))
	if err != nil {
		t.Fatalf("after one closed: %v", err)
	}
	f.Close(End{})
	for _, f := range open {
		f.Close(End{})
	}
}
