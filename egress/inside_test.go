package egress

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"

	"github.com/egressd/egressd/record"
)

// looking lets requests to allowed.test with one of the paths be, by a rule for
// each, which adds a credential.
func looking(t *testing.T, paths ...string) *policy.Policy {
	t.Helper()
	text := "version: 1\nunsafe_allow: [\"127.0.0.1:*\"]\nallow:\n"
	for _, path := range paths {
		text += fmt.Sprintf("  - {host: allowed.test, paths: [%s], id: rule%s, inject: {header: X-Key, env: KEY}}\n", path, path[1:])
	}
	return compiled(t, text)
}

func compiled(t *testing.T, text string) *policy.Policy {
	t.Helper()
	parsed, err := file.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsed.Compile(file.Environment{Inspection: true})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// inspected is a tunnel whose ClientHello was put to p.
func (w *world) inspected(t *testing.T) *Flow {
	t.Helper()
	w.zone.addrs["allowed.test"] = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	f, err := w.Open(t.Context(), peer, ask(t, "allowed.test:443"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Narrow(t.Context(), hello); err != nil {
		t.Fatal(err)
	}
	return f
}

func hello(r *policy.Request) {
	r.Protocol, r.TLS = policy.ProtocolTLS, &policy.ClientHello{ServerName: "allowed.test"}
}

func get(path string) *policy.HTTPRequest {
	return &policy.HTTPRequest{Method: "GET", Path: path, Authority: "allowed.test:443"}
}

func TestRequestsInsideAreFlowsOfTheirOwn(t *testing.T) {
	w := newWorld(t, looking(t, "/a"))
	tunnel := w.inspected(t)
	if !tunnel.Inspected() {
		t.Fatal("the tunnel is not inspected")
	}
	f, err := tunnel.Request(t.Context(), get("/a"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if rule, digest := f.Credential(); rule != "rulea" || digest != w.Digest() {
		t.Errorf("credential of %q by %q", rule, digest)
	}
	if rule, _ := tunnel.Credential(); rule != "" {
		t.Errorf("the tunnel has the credential of %q", rule)
	}
	_, err = tunnel.Request(t.Context(), get("/b"), nil)
	refusalOf(t, err, policy.PathDenied)
	other := get("/a")
	other.Authority = "evil.test:443"
	_, err = tunnel.Request(t.Context(), other, nil)
	refusalOf(t, err, policy.NameMismatch)
	if n := w.Flows.Count(); n != 2 {
		t.Errorf("%d flows are open, want the tunnel and one request", n)
	}
	f.Close(End{Outcome: "closed", Status: 204})
	tunnel.Close(End{Outcome: "closed"})
	asked := w.records(t, record.KindRequest)
	if len(asked) != 3 || asked[0].Decision.Action != "allow" || asked[1].Decision.Action != "deny" || asked[2].Decision.Action != "deny" ||
		!asked[0].TLS.Inspected || asked[0].Flow == w.records(t, record.KindOpen)[0].Flow {
		t.Errorf("recorded %+v", asked)
	}
	if ends := w.records(t, record.KindClose); len(ends) != 2 || ends[0].HTTP.Status != 204 {
		t.Errorf("ended %+v", ends)
	}
}

// TestAPolicyCutsRequestsInside: only those that it refuses.
func TestAPolicyCutsRequestsInside(t *testing.T) {
	w := newWorld(t, looking(t, "/a", "/b"))
	tunnel := w.inspected(t)
	cut := map[string]bool{}
	tunnel.OnCut(func() { cut["tunnel"] = true })
	for _, path := range []string{"/a", "/b"} {
		f, err := tunnel.Request(t.Context(), get(path), nil)
		if err != nil {
			t.Fatal(err)
		}
		f.OnCut(func() { cut[path] = true })
		defer f.Close(End{})
	}
	if err := w.SetPolicy(t.Context(), looking(t, "/a"), "next"); err != nil {
		t.Fatal(err)
	}
	if len(cut) != 1 || !cut["/b"] {
		t.Errorf("cut %v", cut)
	}
	if _, err := tunnel.Request(t.Context(), get("/a"), nil); err != nil {
		t.Errorf("the tunnel takes no more requests: %v", err)
	}
	if err := w.SetPolicy(t.Context(), compiled(t, "version: 1\nunsafe_allow: [\"127.0.0.1:*\"]\ndeny: [allowed.test]\n"), "last"); err != nil {
		t.Fatal(err)
	}
	if !cut["/a"] || !cut["tunnel"] {
		t.Errorf("cut %v", cut)
	}
	_, err := tunnel.Request(t.Context(), get("/a"), nil)
	refusalOf(t, err, policy.RuleDeny)
	w.CloseLeft()
}

// TestRequestsInsideCountAgainstTheSandbox: the world has room for eight.
func TestRequestsInsideCountAgainstTheSandbox(t *testing.T) {
	w := newWorld(t, looking(t, "/a"))
	tunnel := w.inspected(t)
	var open []*Flow
	for range 7 {
		f, err := tunnel.Request(t.Context(), get("/a"), nil)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, f)
	}
	_, err := tunnel.Request(t.Context(), get("/a"), nil)
	refusalOf(t, err, policy.TooManyFlows)
	open[0].Close(End{Outcome: "closed"})
	if _, err := tunnel.Request(t.Context(), get("/a"), nil); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	w.CloseLeft()
}

// TestAnOpaqueTunnelIsNotLookedIntoLater: what has passed unread cannot be
// judged any more.
func TestAnOpaqueTunnelIsNotLookedIntoLater(t *testing.T) {
	const whole = "version: 1\nunsafe_allow: [\"127.0.0.1:*\"]\nallow: [allowed.test]\n"
	w := newWorld(t, compiled(t, whole))
	tunnel := w.inspected(t)
	cut := false
	tunnel.OnCut(func() { cut = true })
	if err := w.SetPolicy(t.Context(), compiled(t, whole+"deny: [evil.test]\n"), "the same"); err != nil {
		t.Fatal(err)
	}
	if tunnel.Inspected() || cut {
		t.Fatalf("inspected %v, cut %v", tunnel.Inspected(), cut)
	}
	if err := w.SetPolicy(t.Context(), looking(t, "/a"), "next"); err != nil {
		t.Fatal(err)
	}
	if !cut {
		t.Error("the tunnel goes on unread")
	}
	tunnel.Close(End{Outcome: "closed"})
	if ends := w.records(t, record.KindClose); len(ends) != 1 || ends[0].Outcome != "cut" || ends[0].Decision.Action != "deny" {
		t.Errorf("ended %+v", ends[0].Decision)
	}
}

// TestAFlowThatHasEndedIsNotCut by a policy that comes at that very moment.
func TestAFlowThatHasEndedIsNotCut(t *testing.T) {
	w := newWorld(t, looking(t, "/a"))
	tunnel := w.inspected(t)
	f, err := tunnel.Request(t.Context(), get("/a"), nil)
	if err != nil {
		t.Fatal(err)
	}
	f.OnCut(func() { t.Error("cut after its end") })
	f.Close(End{Outcome: "closed"})
	f.cut()
	tunnel.Close(End{Outcome: "closed"})
}

// TestARequestNamesTheConnectionItGoesOver in the record of its end: the one
// that its tunnel had when it was opened, or when Over was called.
func TestARequestNamesTheConnectionItGoesOver(t *testing.T) {
	w := newWorld(t, looking(t, "/a"))
	tunnel := w.inspected(t)
	defer tunnel.Close(End{Outcome: "closed"})
	dial := func(addr string) {
		tunnel.mu.Lock()
		defer tunnel.mu.Unlock()
		tunnel.dialled = netip.MustParseAddrPort(addr + ":443")
	}
	open := func() *Flow {
		t.Helper()
		f, err := tunnel.Request(t.Context(), get("/a"), nil)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	dial("127.0.0.1")
	stays, moves := open(), open()
	dial("127.0.0.2")
	moves.Over(tunnel)
	for _, f := range []*Flow{stays, moves, open()} {
		f.Close(End{Outcome: "closed"})
	}
	for i, want := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.2"} {
		if got := w.records(t, record.KindClose)[i].Dst.Addr; got != want {
			t.Errorf("the end of request %d names %s, want %s", i, got, want)
		}
		if got := w.records(t, record.KindRequest)[i].Dst.Addr; got != "" {
			t.Errorf("request %d names %s before it went anywhere", i, got)
		}
	}
}

// TestWhoAskedIsReadWhileMoreBecomesKnown is for the race detector.
func TestWhoAskedIsReadWhileMoreBecomesKnown(t *testing.T) {
	w := newWorld(t, looking(t, "/a"))
	tunnel := w.inspected(t)
	defer tunnel.Close(End{Outcome: "closed"})
	var narrowing sync.WaitGroup
	narrowing.Go(func() {
		if err := tunnel.Narrow(t.Context(), hello); err != nil {
			t.Error(err)
		}
	})
	if got := tunnel.Sandbox(); got == "" {
		t.Error("nobody")
	}
	narrowing.Wait()
}

// TestATunnelStaysInspectedUnderALaterPolicy: a policy that no longer looks at requests does not let the tunnel pass
// unread, because a policy after it may look at them again.
func TestATunnelStaysInspectedUnderALaterPolicy(t *testing.T) {
	w := newWorld(t, looking(t, "/a"))
	w.zone.addrs["allowed.test"] = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	tunnel, err := w.Open(t.Context(), peer, ask(t, "allowed.test:443"))
	if err != nil {
		t.Fatal(err)
	}
	hidden := func(r *policy.Request) {
		hello(r)
		r.TLS.ECH = true
	}
	if err := tunnel.Narrow(t.Context(), hidden); err != nil {
		t.Fatal(err)
	}
	const whole = "version: 1\nunsafe_allow: [\"127.0.0.1:*\"]\nallow: [allowed.test]\n"
	for _, p := range []*policy.Policy{compiled(t, whole), looking(t, "/a")} {
		if err := w.SetPolicy(t.Context(), p, "next"); err != nil {
			t.Fatal(err)
		}
		if !tunnel.Inspected() || !tunnel.request.TLS.Inspected || tunnel.WasCut() {
			t.Errorf("inspected %v, recorded as inspected %v, cut %v", tunnel.Inspected(), tunnel.request.TLS.Inspected, tunnel.WasCut())
		}
	}
	tunnel.Close(End{Outcome: "closed"})
}
