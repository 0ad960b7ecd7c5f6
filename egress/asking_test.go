package egress

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/egress/approvals"
	"github.com/egressd/egressd/policy"

	"github.com/egressd/egressd/record"
)

// newAsking is a world in which people can answer, and every name is at one public address.
func newAsking(t *testing.T, text string, wait time.Duration) *world {
	t.Helper()
	w := newWorld(t, compiled(t, "version: 1\n"+text))
	for _, name := range []string{"a.test", "b.test"} {
		w.zone.addrs[name] = []netip.Addr{netip.MustParseAddr("93.184.216.34")}
	}
	w.zone.addrs["home.test"] = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	w.Approvals.Open(true, wait)
	return w
}

// An opened is what came of an attempt.
type opened struct {
	flow *Flow
	err  error
}

// opens makes an attempt beside the test.
func (w *world) opens(ctx context.Context, r policy.Request) <-chan opened {
	done := make(chan opened, 1)
	go func() {
		f, err := w.Open(ctx, peer, r)
		done <- opened{f, err}
	}()
	return done
}

// question waits for a question that holds for, and for so many flows to wait for it.
func (w *world) question(t *testing.T, waiting int, is func(*Question) bool) Question {
	t.Helper()
	late := time.Now().Add(10 * time.Second)
	for {
		all := w.Approvals.Questions(t.Context(), ^uint64(0))
		for i := range all.Questions {
			if q := &all.Questions[i]; is(q) && q.Waiting == waiting {
				return *q
			}
		}
		if time.Now().After(late) {
			t.Fatalf("it is not asked: %+v", all)
		}
		time.Sleep(time.Millisecond) // who waits is no change of the list
	}
}

func aboutHost(host string) func(*Question) bool {
	return func(q *Question) bool { return q.Host == host && q.State == "pending" }
}

func idOf(t *testing.T, q Question) record.ID {
	t.Helper()
	id, ok := record.ParseID(q.ID)
	if !ok {
		t.Fatalf("%q is no id", q.ID)
	}
	return id
}

func (w *world) approves(t *testing.T, q Question, counts time.Duration, once bool) {
	t.Helper()
	if err := w.Approvals.Answer(idOf(t, q), approvals.Answer{Yes: true, Lasts: counts, Once: once}); err != nil {
		t.Fatal(err)
	}
}

func passed(t *testing.T, o opened) *Flow {
	t.Helper()
	if o.err != nil {
		t.Fatal(o.err)
	}
	t.Cleanup(func() { o.flow.Close(End{}) })
	return o.flow
}

// TestAFlowIsHeldUntilAPersonApproves: and the log says what was asked, and by what it passed.
func TestAFlowIsHeldUntilAPersonApproves(t *testing.T) {
	w := newAsking(t, "ask: [a.test]\n", time.Minute)
	one, two := w.opens(t.Context(), ask(t, "a.test:443")), w.opens(t.Context(), ask(t, "a.test:443"))
	q := w.question(t, 2, aboutHost("a.test"))
	if w.zone.asked.Load() != 0 {
		t.Error("the name was looked up before anybody had answered")
	}
	if len(w.Approvals.Questions(t.Context(), 0).Questions) != 1 || q.Port != 443 || q.Rule != "ask[0]" || q.Method != "" {
		t.Errorf("it is asked %+v", w.Approvals.Questions(t.Context(), 0))
	}
	w.approves(t, q, time.Hour, false)
	f := passed(t, <-one)
	passed(t, <-two)
	all := w.records(t, record.KindOpen)
	if len(all) != 3 {
		t.Fatalf("%d records", len(all))
	}
	if d := all[0].Decision; all[0].Flow != q.ID || d.Action != "ask" || d.Class != "ask-pending" || !slices.Equal(d.Question, []string{q.ID}) {
		t.Errorf("the question is recorded as %+v", all[0])
	}
	for _, r := range all[1:] {
		if d := r.Decision; d.Action != "allow" || d.Class != "" || !slices.Equal(d.Question, []string{q.ID}) {
			t.Errorf("what passes is recorded as %+v", d)
		}
	}
	if err := f.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	passed(t, <-w.opens(t.Context(), ask(t, "a.test:443"))) // without asking
}

// TestAnApprovalIsForNothingElse: another port, host, sandbox or rule, and what else denies.
func TestAnApprovalIsForNothingElse(t *testing.T) {
	w := newAsking(t, "ask: [\"a.test:*\", home.test]\nallow: [b.test]\n", 0)
	for _, to := range []string{"a.test:443", "home.test:443"} {
		refusalOf(t, (<-w.opens(t.Context(), ask(t, to))).err, policy.AskPending)
	}
	for _, q := range w.Approvals.Questions(t.Context(), ^uint64(0)).Questions {
		w.approves(t, q, time.Hour, false)
	}
	passed(t, <-w.opens(t.Context(), ask(t, "a.test:443")))
	refusalOf(t, (<-w.opens(t.Context(), ask(t, "a.test:80"))).err, policy.AskPending)
	refusalOf(t, (<-w.opens(t.Context(), ask(t, "c.test:443"))).err, policy.DefaultDeny)
	refusalOf(t, (<-w.opens(t.Context(), ask(t, "home.test:443"))).err, policy.AddressDenied)
	r := ask(t, "a.test:443")
	r.Sandbox.Name = "other"
	if w.Approvals.Of(0, &r) != nil {
		t.Error("it counts for another sandbox")
	}
	r.Sandbox = policy.Sandbox{Name: "default", Attachment: 7}
	if len(w.Approvals.Of(0, &r)) != 1 {
		t.Error("the next network of that name does not have it")
	}
}

func TestWhatIsRejectedIsNotAskedAgain(t *testing.T) {
	w := newAsking(t, "ask: [a.test]\n", time.Minute)
	one := w.opens(t.Context(), ask(t, "a.test:443"))
	q := w.question(t, 1, aboutHost("a.test"))
	if err := w.Approvals.Answer(idOf(t, q), approvals.Answer{Lasts: time.Hour}); err != nil {
		t.Fatal(err)
	}
	refusalOf(t, (<-one).err, policy.AskRejected)
	r := refusalOf(t, (<-w.opens(t.Context(), ask(t, "a.test:443"))).err, policy.AskRejected)
	if !strings.Contains(r.Decision.Reason, "a person has rejected that") {
		t.Errorf("it says %q", r.Decision.Reason)
	}
	if n := len(w.Approvals.Questions(t.Context(), ^uint64(0)).Questions); n != 1 {
		t.Errorf("%d questions", n)
	}
	w.approves(t, q, time.Hour, false) // after all
	passed(t, <-w.opens(t.Context(), ask(t, "a.test:443")))
}

// TestAnApprovedRequestIsNoDenial counts a run's denials: those of a question that was approved in the end, and another one.
func TestAnApprovedRequestIsNoDenial(t *testing.T) {
	w := newAsking(t, "ask: [a.test, b.test]\n", 0) // none is held, so that each try is refused
	tally := new(Tally)
	w.config.Tally = tally
	refusalOf(t, (<-w.opens(t.Context(), ask(t, "a.test:443"))).err, policy.AskPending)
	refusalOf(t, (<-w.opens(t.Context(), ask(t, "a.test:443"))).err, policy.AskPending)
	refusalOf(t, (<-w.opens(t.Context(), ask(t, "b.test:443"))).err, policy.AskPending)
	for _, q := range w.Approvals.Questions(t.Context(), ^uint64(0)).Questions {
		if q.Host == "a.test" {
			w.approves(t, q, time.Hour, false)
		}
	}
	passed(t, <-w.opens(t.Context(), ask(t, "a.test:443")))
	if c := tally.Counts(); len(c.Denied) != 1 || c.Denied[0].Host != "b.test" || c.Denied[0].Times != 1 {
		t.Errorf("%+v", c.Denied)
	}
}

// TestALateAnswerCounts: who was refused meanwhile comes again.
func TestALateAnswerCounts(t *testing.T) {
	w := newAsking(t, "ask: [a.test]\n", time.Millisecond)
	refusalOf(t, (<-w.opens(t.Context(), ask(t, "a.test:443"))).err, policy.AskTimeout)
	q := w.question(t, 0, aboutHost("a.test"))
	if err := w.Approvals.Answer(idOf(t, q), approvals.Answer{Yes: true, Lasts: time.Hour, Once: true}); err != approvals.ErrNobodyWaits {
		t.Errorf("approved once for nobody: %v", err)
	}
	w.approves(t, q, time.Hour, false)
	passed(t, <-w.opens(t.Context(), ask(t, "a.test:443")))
	last := w.records(t, record.KindOpen)[1]
	if d := last.Decision; d.Action != "ask" || d.Class != "ask-timeout" || !slices.Equal(d.Question, []string{q.ID}) {
		t.Errorf("recorded as %+v", d)
	}
}

// TestWhereNobodyAnswersAllIsRefusedAtOnce: as it was before anybody could, and what waits as well.
func TestWhereNobodyAnswersAllIsRefusedAtOnce(t *testing.T) {
	w := newAsking(t, "ask: [a.test]\n", time.Minute)
	one := w.opens(t.Context(), ask(t, "a.test:443"))
	w.question(t, 1, aboutHost("a.test"))
	w.Approvals.Open(false, time.Minute)
	refusalOf(t, (<-one).err, policy.AskRejected)
	_, err := w.Open(t.Context(), peer, ask(t, "a.test:443"))
	if r := refusalOf(t, err, policy.AskRejected); !strings.Contains(r.Decision.Reason, "egressd serve") {
		t.Errorf("%q", r.Decision.Reason)
	}
}

func TestWhoLeavesIsNotWaitedFor(t *testing.T) {
	w := newAsking(t, "ask: [a.test]\n", time.Hour)
	ctx, leave := context.WithCancel(t.Context())
	one := w.opens(ctx, ask(t, "a.test:443"))
	w.question(t, 1, aboutHost("a.test"))
	leave()
	refusalOf(t, (<-one).err, policy.AskTimeout)
	two := w.opens(t.Context(), ask(t, "a.test:443"))
	w.question(t, 1, aboutHost("a.test"))
	w.Shut()
	refusalOf(t, (<-two).err, policy.PolicyNotLoaded)
}

// cut reports when a flow is cut.
func cut(f *Flow) <-chan struct{} {
	done := make(chan struct{})
	f.OnCut(sync.OnceFunc(func() { close(done) }))
	return done
}

func awaitCut(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s, and the flow is open", what)
	}
}

// TestAFlowEndsWithTheApprovalThatItNeeds: with its time, when it is taken back, and with the rule.
func TestAFlowEndsWithTheApprovalThatItNeeds(t *testing.T) {
	w := newAsking(t, "ask: [a.test]\n", time.Minute)
	open := func(counts time.Duration, once bool) (*Flow, Question) {
		one := w.opens(t.Context(), ask(t, "a.test:443"))
		q := w.question(t, 1, aboutHost("a.test"))
		w.approves(t, q, counts, once)
		return passed(t, <-one), q
	}
	f, _ := open(time.Second, false)
	awaitCut(t, "its time is over", cut(f))
	f, q := open(time.Hour, false)
	if err := w.Approvals.Answer(idOf(t, q), approvals.Answer{Lasts: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	awaitCut(t, "it was taken back", cut(f))
	for len(w.Approvals.Questions(t.Context(), ^uint64(0)).Questions) > 0 {
		time.Sleep(time.Millisecond)
	}
	f, q = open(time.Hour, true)
	two := w.opens(t.Context(), ask(t, "a.test:443")) // which was not there in time
	if second := w.question(t, 1, aboutHost("a.test")); second.ID == q.ID {
		t.Error("the answer was for once, and counts again")
	}
	if err := w.SetPolicy(t.Context(), compiled(t, "version: 1\nask: [a.test]\nallow: [b.test]\n"), "still asked"); err != nil {
		t.Fatal(err)
	}
	if f.WasCut() {
		t.Error("a policy that asks the same has cut it")
	}
	if err := w.SetPolicy(t.Context(), compiled(t, "version: 1\ndeny: [a.test]\n"), "denied"); err != nil {
		t.Fatal(err)
	}
	awaitCut(t, "the rule denies", cut(f))
	refusalOf(t, (<-two).err, policy.RuleDeny)
	if err := w.SetPolicy(t.Context(), compiled(t, "version: 1\nask: [a.test]\n"), "asked again"); err != nil {
		t.Fatal(err)
	}
	if all := w.Approvals.Questions(t.Context(), ^uint64(0)).Questions; len(all) != 0 {
		t.Errorf("these outlived a policy that does not ask them: %+v", all)
	}
}

// TestARequestIsAskedAboutByItself where the rule is about some requests, and the place where not.
func TestARequestIsAskedAboutByItself(t *testing.T) {
	w := newAsking(t, "ask: [{host: a.test, methods: [POST]}, b.test]\nallow: [a.test]\n", 0)
	request := func(host, method, path string) error {
		r := ask(t, host+":80")
		r.Via, r.HTTP = policy.ViaHTTP, &policy.HTTPRequest{Method: method, Path: path, BodySize: -1}
		o := <-w.opens(t.Context(), r)
		if o.flow != nil {
			o.flow.Close(End{})
		}
		return o.err
	}
	refusalOf(t, request("a.test", "POST", "/1"), policy.AskPending)
	refusalOf(t, request("b.test", "POST", "/1"), policy.AskPending)
	for _, q := range w.Approvals.Questions(t.Context(), ^uint64(0)).Questions {
		if q.Host == "a.test" && (q.Method != "POST" || q.Path != "/1") || q.Host == "b.test" && q.Method+q.Path != "" {
			t.Errorf("it is asked %+v", q)
		}
		w.approves(t, q, time.Hour, false)
	}
	for _, path := range []string{"/1", "/2"} {
		if err := request("b.test", "GET", path); err != nil {
			t.Error(err)
		}
	}
	if err := request("a.test", "POST", "/1"); err != nil {
		t.Error(err)
	}
	refusalOf(t, request("a.test", "POST", "/2"), policy.AskPending)
	refusalOf(t, request("a.test", "post", "/1"), policy.AskPending)
	refusalOf(t, request("a.test", "POST", "/"+strings.Repeat("x", record.MaxPath)), policy.AskRejected)
}

// TestARequestInATunnelIsHeld, and what was approved once for a tunnel is so for what is in it.
func TestARequestInATunnelIsHeld(t *testing.T) {
	w := newAsking(t, "ask: [{host: a.test, methods: [POST]}, b.test]\nallow: [a.test]\n", time.Minute)
	tunnel := passed(t, <-w.opens(t.Context(), ask(t, "a.test:443")))
	post := func(in *Flow) <-chan opened {
		done := make(chan opened, 1)
		go func() {
			f, err := in.Request(t.Context(), &policy.HTTPRequest{Method: "POST", Path: "/x", BodySize: -1}, nil)
			done <- opened{f, err}
		}()
		return done
	}
	one := post(tunnel)
	w.approves(t, w.question(t, 1, func(q *Question) bool { return q.Path == "/x" && q.State == "pending" }), time.Hour, false)
	passed(t, <-one)
	two := w.opens(t.Context(), ask(t, "b.test:443"))
	w.approves(t, w.question(t, 1, aboutHost("b.test")), time.Hour, true)
	second := passed(t, <-two)
	passed(t, <-post(second))
	approved := 0
	for _, q := range w.Approvals.Questions(t.Context(), 0).Questions {
		if q.State == "approved" {
			approved++
		}
	}
	if approved != 2 {
		t.Errorf("%d answers count", approved)
	}
}

// TestACutPathSaysSo: a path may end in /**, behind what a notification has room for.
func TestACutPathSaysSo(t *testing.T) {
	q := &Question{ID: "01KB6ZQ4SZ", Sandbox: "ci", Host: "a.test", Port: 443, Method: "GET", Path: "/" + strings.Repeat("a", askedPath-1)}
	if text := q.Ask(""); !strings.Contains(text, q.Path+" at a.test:443") {
		t.Errorf("a whole path: %s", text)
	}
	q.Path += "/**"
	if text := q.Ask(""); strings.Contains(text, "**") || !strings.Contains(text, "3 more bytes") || !strings.Contains(text, " at a.test:443") {
		t.Errorf("a cut path: %s", text)
	}
}
