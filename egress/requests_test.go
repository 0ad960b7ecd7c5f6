package egress

import (
	"net/netip"
	"reflect"
	"testing"
	"time"
	"unsafe"

	"github.com/egressd/egressd/internal/fieldtest"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

func typicalRequest() *policy.Request {
	return &policy.Request{
		Sandbox: policy.Sandbox{Name: "ci", Kind: "token"}, Via: policy.ViaConnect, Protocol: policy.ProtocolTLS, Time: time.Now(),
		Destination: policy.Destination{Host: "a.test", Port: 443, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Aliases: []string{"b.test"}},
		TLS:         &policy.ClientHello{ServerName: "a.test", ALPN: []string{"h2"}, JA4: "t13d"},
	}
}

func TestRequestsThatAgreeAreShared(t *testing.T) {
	var s requests
	first := s.of(typicalRequest())
	if !first.Time.IsZero() {
		t.Error("a shared request has a time")
	}
	if s.of(typicalRequest()) != first {
		t.Error("the same request is kept twice")
	}
	moved := typicalRequest()
	moved.Destination.Addrs = []netip.Addr{netip.MustParseAddr("192.0.2.2")}
	if s.of(moved) != moved || s.of(typicalRequest()) == moved {
		t.Error("requests for two addresses are one")
	}
	for i := range 2 * requestsMost {
		other := typicalRequest()
		other.Destination.Port = uint16(i)
		s.of(other)
	}
	if len(s.known) > requestsMost {
		t.Errorf("%d requests are kept", len(s.known))
	}
}

// TestRequestsThatDifferAreNotShared changes each field of a request.
func TestRequestsThatDifferAreNotShared(t *testing.T) {
	fields := 0
	for name, r := range fieldtest.Each(typicalRequest) {
		var s requests
		s.of(typicalRequest())
		if fields++; name != "Time" && s.of(r) != r {
			t.Errorf("a request with another %s was taken for the first", name)
		}
	}
	if fields < 20 {
		t.Errorf("only %d fields of a request were changed", fields)
	}
}

// TestDecisionsThatDifferAreNotShared changes each field of a decision.
func TestDecisionsThatDifferAreNotShared(t *testing.T) {
	allows := func() *policy.Decision { return &policy.Decision{Verdict: policy.Allow, Rule: "r"} }
	for name, d := range fieldtest.Each(allows) {
		var s sharedDecisions
		s.of(*allows())
		if got := s.of(*d); !reflect.DeepEqual(got, d) {
			t.Errorf("a decision with another %s became %+v", name, got)
		}
	}
	var s sharedDecisions
	if first, again := s.of(*allows()), s.of(*allows()); first != again {
		t.Error("the same decision is kept twice")
	}
}

// TestAFlowIsSmall guards the memory of idle tunnels. The Go runtime rounds 145
// bytes up to 160.
func TestAFlowIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(Flow{}); size > 144 {
		t.Errorf("a flow has %d bytes", size)
	}
}

func TestEndpointsAreWhatTheyWereMadeOf(t *testing.T) {
	for _, text := range []string{"192.0.2.1:443", "[2001:db8::1]:1", "0.0.0.0:0"} {
		if a := netip.MustParseAddrPort(text); endpointOf(a).addrPort() != a {
			t.Errorf("%v became %v", a, endpointOf(a).addrPort())
		}
	}
	if mapped := netip.MustParseAddrPort("[::ffff:192.0.2.1]:80"); endpointOf(mapped).addrPort().String() != "192.0.2.1:80" {
		t.Errorf("%v became %v", mapped, endpointOf(mapped).addrPort())
	}
	if a := endpointOf(netip.AddrPort{}).addrPort(); a.IsValid() {
		t.Errorf("nothing became %v", a)
	}
}

func TestAnIDKnowsItsTime(t *testing.T) {
	now := time.Now()
	if d := now.Sub(new(idSource).next(now).Time()); d < 0 || d >= record.IDTick {
		t.Errorf("%v off", d)
	}
}

// TestFlowsToOnePlaceShareTheirRequest has two flows open at a time.
func TestFlowsToOnePlaceShareTheirRequest(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	var flows [2]*Flow
	for i := range flows {
		var err error
		if flows[i], err = w.Open(t.Context(), peer, ask(t, "127.0.0.1:1")); err != nil {
			t.Fatal(err)
		}
		defer flows[i].Close(End{})
	}
	if flows[0].request != flows[1].request {
		t.Error("each has a request of its own")
	}
}
