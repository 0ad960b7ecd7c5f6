package egress

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"

	"github.com/egressd/egressd/record"
)

func TestAPolicyChangeCutsWhatItRefuses(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	port := origin(t)
	f, err := w.Open(t.Context(), peer, ask(t, "127.0.0.1:"+port))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := f.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan struct{})
	f.OnCut(func() { close(told) })
	if err := w.SetPolicy(t.Context(), policy.New(opinion(deny)), "stricter"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-told:
	case <-time.After(20 * time.Second):
		t.Fatal("the flow was not cut")
	}
	io.Copy(io.Discard, conn)
	f.Close(End{Outcome: "closed"})
	closes := w.records(t, record.KindClose)
	if len(closes) != 1 || closes[0].Outcome != "cut" || closes[0].Decision.Class != string(policy.RuleDeny) {
		t.Errorf("close records: %+v", closes)
	}
}

// TestRecheckCutsWhatThePolicyAllowsNoLonger has a rule end in the policy that is in force.
func TestRecheckCutsWhatThePolicyAllowsNoLonger(t *testing.T) {
	port := origin(t)
	var over bool
	w := newWorld(t, policy.New(opinion(func(r *policy.Request) policy.Decision {
		if over && r.Destination.Addr.String() == "127.0.0.2" {
			return deny(r)
		}
		return allow(r)
	})))
	flows := map[string]*Flow{}
	for _, host := range []string{"127.0.0.1", "127.0.0.2"} {
		f, err := w.Open(t.Context(), peer, ask(t, host+":"+port))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close(End{})
		flows[host] = f
	}
	w.Recheck(t.Context())
	if flows["127.0.0.2"].WasCut() {
		t.Error("cut while the rule stands")
	}
	over = true
	w.Recheck(t.Context())
	if !flows["127.0.0.2"].WasCut() || flows["127.0.0.1"].WasCut() {
		t.Errorf("cut: %t, and another: %t", flows["127.0.0.2"].WasCut(), flows["127.0.0.1"].WasCut())
	}
}

// TestARuleThatEndsWhileAFlowIsOpenedOpensNothing: the policy allowed it a moment before.
func TestARuleThatEndsWhileAFlowIsOpenedOpensNothing(t *testing.T) {
	over := false
	var w *world
	w = newWorld(t, policy.New(opinion(func(r *policy.Request) policy.Decision {
		if over {
			return deny(r)
		}
		over = true
		w.Recheck(t.Context())
		return allow(r)
	})))
	_, err := w.Open(t.Context(), peer, ask(t, "127.0.0.1:"+origin(t)))
	refusalOf(t, err, policy.RuleDeny)
	if n := w.Flows.Count(); n != 0 {
		t.Errorf("%d flows are open", n)
	}
}

func TestAFlowOpenedUnderTheOldPolicyIsDecidedAgainBeforeItDials(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	f, err := w.Open(t.Context(), peer, ask(t, "127.0.0.1:"+origin(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(End{})
	w.policy.Store(policy.New(opinion(deny))) // as if SetPolicy had not reached the flow yet
	_, err = f.Dial(t.Context())
	refusalOf(t, err, policy.RuleDeny)
}

func TestARefusedFlowNeverDialsAgain(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	port := origin(t)
	open := func() *Flow {
		f, err := w.Open(t.Context(), peer, ask(t, "127.0.0.1:"+port))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	closed := open()
	closed.Close(End{})
	if _, err := closed.Dial(t.Context()); err == nil {
		t.Error("a closed flow dialled")
	}
	cut := open()
	defer cut.Close(End{})
	if err := w.SetPolicy(t.Context(), policy.New(opinion(deny)), "stricter"); err != nil {
		t.Fatal(err)
	}
	_, err := cut.Dial(t.Context())
	refusalOf(t, err, policy.RuleDeny)
	if err := cut.judged(netip.MustParseAddrPort("127.0.0.1:" + port)); err == nil {
		t.Error("an attempt under way may still connect")
	}
}

func TestOneSandboxDoesNotTakeAllLookups(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	w.config.FlowsPerSandbox = 10 * lookupsPerSandbox
	w.zone.silent = make(chan struct{})
	var waiting sync.WaitGroup
	for i := range lookupsPerSandbox {
		waiting.Go(func() { w.Open(context.Background(), peer, ask(t, fmt.Sprintf("never%d.test:443", i))) })
	}
	for w.zone.asked.Load() < lookupsPerSandbox {
		time.Sleep(time.Millisecond)
	}
	_, err := w.Open(t.Context(), peer, ask(t, "another.test:443"))
	refusalOf(t, err, policy.TooManyFlows)
	for range lookupsPerSandbox { // more who wait for the same name cost nobody anything
		waiting.Go(func() {
			_, err := w.Open(context.Background(), peer, ask(t, "never0.test:443"))
			refusalOf(t, err, policy.NetworkDNS)
		})
	}
	close(w.zone.silent)
	waiting.Wait()
}

func TestNoRecordIsTooLong(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	f := w.newFlow(peer, ask(t, strings.Repeat("a.", 120)+"test:443"))
	long := strings.Repeat("\u0436\"\x00", 3000)
	many := slices.Repeat([]string{long}, 100)
	f.request.TLS = &policy.ClientHello{NoName: long, ALPN: many, ECH: true, JA4: long[:36]}
	f.request.HTTP = &policy.HTTPRequest{Method: long, Path: long}
	f.request.Process = &policy.Process{Exe: long, Argv: many}
	f.request.Destination.Addrs = slices.Repeat([]netip.Addr{netip.MustParseAddr("2606:2800:220:1:ffff:ffff:ffff:ffff")}, 100)
	f.decision = &policy.Decision{Rule: long, Reason: long, Class: policy.RuleDeny, AllowedIf: many, Policy: w.Digest()}
	for _, kind := range []record.Kind{record.KindOpen, record.KindRefused, record.KindClose, record.KindDNS} {
		if _, err := f.gate.Records.append(f, recordOf{kind: kind, raw: []byte(long), end: End{Outcome: "closed"}}); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestNarrowOnlyGetsStricter(t *testing.T) {
	w := newWorld(t, policy.New(opinion(func(r *policy.Request) policy.Decision {
		if r.HTTP != nil && r.HTTP.Method != "GET" {
			return policy.Decision{Class: policy.MethodDenied}
		}
		return allow(r)
	})))
	f, err := w.Open(t.Context(), peer, ask(t, "93.184.216.34:80"))
	if err != nil {
		t.Fatal(err)
	}
	method := func(m string) error {
		return f.Narrow(t.Context(), func(r *policy.Request) {
			r.HTTP = &policy.HTTPRequest{Method: m, Path: "/"}
			r.Destination = policy.Destination{Host: "evil.test", Port: 80}
		})
	}
	if err := method("GET"); err != nil {
		t.Fatal(err)
	}
	if f.Destination().Host != "93.184.216.34" {
		t.Error("Narrow changed the destination")
	}
	refusalOf(t, method("POST"), policy.MethodDenied)
	f.Close(End{Outcome: "method-denied"})
	if c := w.records(t, record.KindClose); len(c) != 1 || c[0].Decision.Action != "deny" {
		t.Errorf("close records: %+v", c)
	}
}

func TestNoRecordNoPassage(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	w.config.Log.Close()
	_, err := w.Open(t.Context(), peer, ask(t, "93.184.216.34:443"))
	refusalOf(t, err, policy.AuditUnavailable)
	if w.Flows.Count() != 0 {
		t.Error("a flow was opened")
	}
}

func TestUnknownSandboxesAreRefusedAndRecorded(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	if err := w.config.Sandboxes.Set([]sandbox.Entry{{Name: "ci", Token: "right"}}); err != nil {
		t.Fatal(err)
	}
	with := func(password string) sandbox.Peer {
		return sandbox.Peer{Addr: peer.Addr, User: "ci", Password: password, HasCredentials: true}
	}
	for _, p := range []sandbox.Peer{peer, with("wrong"), with("")} {
		_, err := w.Open(t.Context(), p, ask(t, "93.184.216.34:443"))
		refusalOf(t, err, policy.UnknownSandbox)
	}
	f, err := w.Open(t.Context(), with("right"), ask(t, "93.184.216.34:443"))
	if err != nil {
		t.Fatal(err)
	}
	f.Close(End{})
	if opens := w.records(t, record.KindOpen); len(opens) != 4 || opens[3].Sandbox != "ci" || opens[0].Sandbox != "" {
		t.Errorf("records: %+v", opens)
	}
}

func TestRefuseRecordsRawBytesEscaped(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	raw := []byte("CONNECT evil.test\x00\n{\"seq\":1}\x1b[31m\xff" + strings.Repeat("x", 300))
	w.Refuse(peer, policy.ViaConnect, raw, policy.MalformedHost, "a NUL in the host")
	text, err := os.ReadFile(filepath.Join(w.dir, "00000001.log"))
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte("\n")); n != 2 {
		t.Errorf("%d lines, want 2", n)
	}
	for _, c := range text {
		if c != '\n' && (c < 0x20 || c > 0x7e) {
			t.Fatalf("byte %#x in the log", c)
		}
	}
	refused := w.records(t, record.KindRefused)
	if len(refused) != 1 || []rune(refused[0].Raw)[17] != 0 || len([]rune(refused[0].Raw)) != record.MaxRaw {
		t.Errorf("records: %+v", refused)
	}
}

// TestSwappingPoliciesUnderLoad leaves no flow behind that nobody decided
// again, whichever of Open and SetPolicy was first.
func TestSwappingPoliciesUnderLoad(t *testing.T) {
	open, shut := policy.New(opinion(allow)), policy.New(opinion(deny))
	w := newWorld(t, open)
	var workers sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		workers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if f, err := w.Open(t.Context(), peer, ask(t, "93.184.216.34:443")); err == nil {
					f.Close(End{})
				}
			}
		})
	}
	for i := range 60 {
		p := open
		if i%2 == 0 {
			p = shut
		}
		if err := w.SetPolicy(t.Context(), p, "swap"); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	workers.Wait()
	if w.Flows.Count() != 0 {
		t.Errorf("%d flows are left", w.Flows.Count())
	}
}

func TestIDsAreUniqueAndSortByTime(t *testing.T) {
	var s idSource
	now := time.Now()
	last := ""
	for range 1000 {
		id := s.next(now).String()
		if id <= last || len(id) != 10 {
			t.Fatalf("%s follows %s", id, last)
		}
		last = id
	}
}
