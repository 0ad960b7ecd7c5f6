package egress

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/internal/gitwire"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"

	"github.com/egressd/egressd/record"
)

// beside returns a policy that allows everything, and asks another opinion.
func beside(o policy.Evaluator) *policy.Policy {
	return policy.New(opinion(allow)).WithShadow(policy.New(o))
}

func TestWhereTheShadowDiffersIsRecorded(t *testing.T) {
	shadow := policy.New(opinion(deny))
	w := newWorld(t, policy.New(opinion(allow)).WithShadow(shadow))
	f, err := w.Open(t.Context(), peer, ask(t, "127.0.0.1:"+origin(t)))
	if err != nil {
		t.Fatal(err)
	}
	f.Close(End{Outcome: "closed"})
	for _, kind := range []record.Kind{record.KindOpen, record.KindClose} {
		records := w.records(t, kind)
		if len(records) != 1 || records[0].Decision.Action != "allow" || records[0].Shadow == nil {
			t.Fatalf("%s: %+v", kind, records)
		}
		want := record.Shadow{Action: "deny", Rule: "test", Layer: "user", Reason: "the test says no", Class: "rule-deny", Policy: shadow.Digest()}
		if *records[0].Shadow != want {
			t.Errorf("%s: %+v", kind, records[0].Shadow)
		}
	}
	loads := w.records(t, record.KindPolicy)
	if len(loads) != 1 || loads[0].Shadow == nil || *loads[0].Shadow != (record.Shadow{Policy: shadow.Digest()}) {
		t.Errorf("the record of the load: %+v", loads)
	}
}

// TestARefusalDoesNotMentionTheShadow has the policy in force refuse what the shadow
// allows.
func TestARefusalDoesNotMentionTheShadow(t *testing.T) {
	w := newWorld(t, policy.New(opinion(deny)).WithShadow(policy.New(opinion(allow))))
	_, err := w.Open(t.Context(), peer, ask(t, "evil.test:443"))
	if r := refusalOf(t, err, policy.RuleDeny); r.Decision.Shadow != nil {
		t.Errorf("the refusal holds %+v", r.Decision.Shadow)
	}
	opens := w.records(t, record.KindOpen)
	if len(opens) != 1 || opens[0].Decision.Action != "deny" || opens[0].Shadow == nil || opens[0].Shadow.Action != "allow" {
		t.Errorf("%+v", opens)
	}
	if n := w.zone.asked.Load(); n != 0 {
		t.Error("the name was looked up, as the shadow would have it")
	}
}

// TestWhatAgreesHasNoShadow covers a flow whose name cannot be resolved, too, and
// what egressd itself refuses.
func TestWhatAgreesHasNoShadow(t *testing.T) {
	w := newWorld(t, beside(opinion(allow)))
	w.zone.addrs["a.test"] = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	var open []*Flow
	for range 8 { // as many as the sandbox may have
		f, err := w.Open(t.Context(), peer, ask(t, "a.test:443"))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, f)
	}
	_, err := w.Open(t.Context(), peer, ask(t, "a.test:443"))
	refusalOf(t, err, policy.TooManyFlows)
	for _, f := range open {
		f.Close(End{})
	}
	_, err = w.Open(t.Context(), peer, ask(t, "nowhere.test:443"))
	refusalOf(t, err, policy.NetworkDNS)
	for _, r := range w.records(t, "") {
		if r.Shadow != nil && r.Kind != record.KindPolicy {
			t.Errorf("%s: %+v", r.Kind, r.Shadow)
		}
	}
}

// TestATunnelIsComparedWithItsFirstBytes by who can wait, for a tenth of a second at most.
func TestATunnelIsComparedWithItsFirstBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		thinks := make(chan struct{})
		defer close(thinks)
		w := newWorld(t, beside(opinion(func(r *policy.Request) policy.Decision {
			if r.TLS != nil {
				<-thinks
			}
			return allow(r)
		})))
		f, err := w.Open(t.Context(), peer, ask(t, "127.0.0.1:443"))
		if err != nil {
			t.Fatal(err)
		}
		hello := func(r *policy.Request) { r.TLS = &policy.ClientHello{ServerName: "allowed.test"} }
		began := time.Now()
		if err := f.Narrow(t.Context(), hello); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		f.Close(End{Up: 3, Outcome: "closed"})
		closes := w.records(t, record.KindClose)
		if len(closes) != 1 || closes[0].Shadow == nil || closes[0].Shadow.Class != "policy-error" || closes[0].Bytes.Up != 3 {
			t.Fatalf("%+v", closes)
		}
	})
}

func TestARequestInsideATunnelIsComparedToo(t *testing.T) {
	parsed, err := file.Parse("test.yaml", []byte("version: 1\nunsafe_allow: [\"127.0.0.1:*\"]\nallow: [{host: allowed.test, methods: [GET, POST]}]\nrego: [{path: next, mode: shadow}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	noPosts := opinion(func(r *policy.Request) policy.Decision {
		if r.HTTP != nil && r.HTTP.Method == "POST" {
			return deny(r)
		}
		return policy.Decision{Verdict: policy.Abstain}
	})
	p, err := parsed.Compile(file.Environment{Inspection: true, Shadow: []policy.Evaluator{noPosts}})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, p)
	f := w.inspected(t)
	defer f.Close(End{})
	for _, method := range []string{"GET", "POST"} {
		inner, err := f.Request(context.Background(), &policy.HTTPRequest{Method: method, Path: "/"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		inner.Close(End{})
	}
	requests := w.records(t, record.KindRequest)
	differs := func(r record.Record) bool { return r.Shadow != nil }
	if len(requests) != 2 || slices.IndexFunc(requests, differs) != 1 || requests[1].HTTP.Method != "POST" {
		t.Errorf("%+v", requests)
	}
}

// TestTheLongestRecordFits fills every part of a record.
func TestTheLongestRecordFits(t *testing.T) {
	long := strings.Repeat("\x00", 3000)
	many := slices.Repeat([]string{long}, 2*record.MaxList)
	d := policy.Decision{Class: policy.AddressDenied, Rule: long, Layer: policy.Organisation, Reason: long, AddressClass: "protocol-assignments", AllowedIf: many, Policy: policy.New().Digest()}
	shadow := d
	d.Shadow = &shadow
	f := &Flow{gate: &Gate{}, src: netip.MustParseAddrPort("[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:65535"), decision: &d, request: &policy.Request{
		Sandbox:     policy.Sandbox{Name: strings.Repeat("s", 64)},
		Destination: policy.Destination{Host: strings.Repeat("h", 253), Port: 65535, Addrs: slices.Repeat([]netip.Addr{netip.MustParseAddr("2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff")}, 40)},
		TLS:         &policy.ClientHello{NoName: long, ALPN: many, JA4: "t13d1516h2_8daaf6152771_02713d6af862", Inspected: true, ECH: true},
		HTTP:        &policy.HTTPRequest{Method: long, Path: long},
		Process:     &policy.Process{PID: 1 << 30, Exe: long, Argv: many},
	}}
	f.dialled = f.src
	var e encoder
	e.flow(f, recordOf{kind: record.KindClose, end: End{Up: 1 << 60, Down: 1 << 60, Status: 599, Outcome: "client-refused-our-certificate"}, note: strings.Repeat("n", 1000)})
	if len(e.Line) > audit.MaxRecord {
		t.Errorf("the longest record has %d bytes, and the log takes %d", len(e.Line), audit.MaxRecord)
	}

	// One of a push has no note, and the names of its repository and refs are bounded.
	path := strings.Repeat("/"+strings.Repeat("r", 100), 8)
	f.request.HTTP = &policy.HTTPRequest{Method: "POST", Path: path + "/git-receive-pack", Header: map[string][]string{"content-type": {gitwire.PushType}}, Body: longestPush(t)}
	e = encoder{}
	e.flow(f, recordOf{kind: record.KindRequest})
	if r, err := record.Decode(e.Line); len(e.Line) > audit.MaxRecord || err != nil || r.Git == nil || len(r.Git.Refs) < 10 {
		t.Errorf("the longest record of a push has %d bytes, and the log takes %d: %v, %+v", len(e.Line), audit.MaxRecord, err, r)
	}
}

// longestPush returns the longest push that can be read.
func longestPush(t *testing.T) *policy.Body {
	none, id := strings.Repeat("0", 40), strings.Repeat("1", 40)
	text, longest := "", ""
	for i := range 100 {
		line := fmt.Sprintf("%s %s refs/heads/agent/%d", none, id, i)
		text += fmt.Sprintf("%04x%s", len(line)+4, line)
		if _, err := gitwire.ParsePush([]byte(text+"0000PACK"), false, false); err == nil {
			longest = text + "0000PACK"
		}
	}
	if longest == "" || len(longest) > 4096 {
		t.Fatalf("the longest push has %d bytes", len(longest))
	}
	return &policy.Body{Bytes: []byte(longest)}
}

// TestShutWaitsForTheShadow that goes on after nobody waits for its answer any more.
func TestShutWaitsForTheShadow(t *testing.T) {
	release := make(chan struct{})
	w := newWorld(t, beside(opinion(func(r *policy.Request) policy.Decision {
		<-release
		return deny(r)
	})))
	f, err := w.Open(t.Context(), peer, ask(t, "127.0.0.1:443"))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.SetPolicy(t.Context(), policy.New(opinion(allow)), "another"); err != nil { // which has none
		t.Fatal(err)
	}
	f.Close(End{Outcome: "closed"})
	left := make(chan struct{})
	go func() {
		w.Shut()
		w.CloseLeft()
		close(left)
	}()
	select {
	case <-left:
		t.Error("it did not wait")
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	<-left
}
