package egress

import (
	"net/netip"
	"reflect"
	"testing"
	"time"
	"unsafe"

	"github.com/egressd/egressd/policy"
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

// TestRequestsThatDifferAreNotShared changes every part of a request, those
// that are yet to be thought of included, and expects to get it back.
func TestRequestsThatDifferAreNotShared(t *testing.T) {
	parts := 0
	for change := 0; ; change++ {
		var s requests
		s.of(typicalRequest())
		r := typicalRequest()
		left := change
		name := changeOne(reflect.ValueOf(r).Elem(), "request", &left)
		if name == "" {
			break
		}
		if parts++; name != "request.Time" && s.of(r) != r {
			t.Errorf("a request with another %s was taken for the first", name)
		}
	}
	if parts < 20 {
		t.Errorf("only %d parts of a request were changed", parts)
	}
}

// changeOne changes the part of v that comes after left others, and returns
// its name, or "" where v has fewer.
func changeOne(v reflect.Value, name string, left *int) string {
	switch {
	case v.Type() == reflect.TypeFor[time.Time](), v.Type() == reflect.TypeFor[netip.Addr]():
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if changed := changeOne(v.Field(i), name+"."+v.Type().Field(i).Name, left); changed != "" {
				return changed
			}
		}
		return ""
	case v.Kind() == reflect.Pointer && !v.IsNil():
		return changeOne(v.Elem(), name, left)
	}
	if *left--; *left >= 0 {
		return ""
	}
	v.Set(another(v))
	return name
}

// another returns a value of the type of v that is not v.
func another(v reflect.Value) reflect.Value {
	switch old := v.Interface().(type) {
	case time.Time:
		return reflect.ValueOf(old.Add(time.Hour))
	case netip.Addr:
		return reflect.ValueOf(netip.MustParseAddr("192.0.2.9"))
	}
	switch v.Kind() {
	case reflect.String:
		return reflect.ValueOf(v.String() + "x").Convert(v.Type())
	case reflect.Bool:
		return reflect.ValueOf(!v.Bool()).Convert(v.Type())
	case reflect.Slice:
		return reflect.MakeSlice(v.Type(), v.Len()+1, v.Len()+1)
	case reflect.Map:
		return reflect.MakeMap(v.Type())
	case reflect.Pointer:
		return reflect.New(v.Type().Elem())
	}
	return reflect.ValueOf(77).Convert(v.Type())
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
	if d := now.Sub(new(idSource).next(now).time()); d < 0 || d >= idTick {
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
