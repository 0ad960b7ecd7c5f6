package egress

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/policy"
)

// TestAChangeOfThePolicyCostsNoQuestion: who waits goes on to, however often what has nothing
// to do with it changes, and what is approved once is so for it.
func TestAChangeOfThePolicyCostsNoQuestion(t *testing.T) {
	text := "ask: [{host: a.test, id: look}]\n"
	w := newAsking(t, text, time.Minute)
	done := w.opens(t.Context(), ask(t, "a.test:443"))
	q := w.question(t, 1, aboutHost("a.test"))
	for i := range 3 * maxQuestionsPerFlow {
		p := compiled(t, fmt.Sprintf("version: 1\n%sallow: [h%d.test]\n", text, i))
		if err := w.SetPolicy(t.Context(), p, "grants"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond) // for the flow to look, most times
		if now, ok := w.Approvals.Question(idOf(t, q)); !ok || now.Waiting != 1 || now.Asked != 1 {
			t.Fatalf("after %d changes: %t, %+v", i+1, ok, now)
		}
	}
	w.approves(t, q, time.Hour, true)
	passed(t, <-done)
}

// TestAFlowWaitsOnceInAll: for what two rules ask, one by its name and one by its address.
func TestAFlowWaitsOnceInAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const wait = time.Minute
		w := newAsking(t, "ask: [{host: a.test, id: one}, {host: 93.184.216.34/32, id: two}]\n", wait)
		w.Approvals.Clock = clockOf(time.Now())
		began := time.Now()
		done := w.opens(t.Context(), ask(t, "a.test:443"))
		q := w.question(t, 1, func(a *Question) bool { return a.Rule == "one" })
		time.Sleep(wait * 3 / 4)
		w.approves(t, q, time.Hour, false)
		refusalOf(t, (<-done).err, policy.AskTimeout)
		if waited := time.Since(began).Round(time.Second); waited != wait {
			t.Errorf("it waited %s", waited)
		}
		w.Shut()
	})
}

// TestWhatComesAfterTheReviewIsReviewed: a flow that was decided by the policy before asks
// what the one in force does not, and nothing is left of that.
func TestWhatComesAfterTheReviewIsReviewed(t *testing.T) {
	w := newAsking(t, "ask: [a.test]\n", time.Minute)
	r := ask(t, "a.test:443")
	r.Sandbox.Name = "default"
	f, late := w.newFlow(peer, r), time.Now().Add(time.Minute)
	if f.decide(t.Context(), f.request) == nil || !f.mayAsk() {
		t.Fatalf("it is decided %+v", f.decision)
	}
	if err := w.SetPolicy(t.Context(), compiled(t, "version: 1\ndeny: [a.test]\n"), "denied"); err != nil {
		t.Fatal(err)
	}
	refusal := f.askAll(t.Context(), f.request, late, nil)
	refusalOf(t, refusal, policy.RuleDeny)
	if all := w.Approvals.Questions(t.Context(), ^uint64(0)).Questions; len(all) != 0 {
		t.Errorf("there is %+v", all)
	}
}

// TestNothingIsAskedAfterTheNetworkHasLeft has a flow come to its question after the questions of its network were removed.
func TestNothingIsAskedAfterTheNetworkHasLeft(t *testing.T) {
	w := newAsking(t, "ask: [a.test]\n", time.Minute)
	r := ask(t, "a.test:443")
	r.Sandbox.Name, r.Sandbox.Attachment = "default", 7
	w.Attachments.Begin(7, new(Tally))
	f, late := w.newFlow(peer, r), time.Now().Add(time.Second)
	if f.decide(t.Context(), f.request) == nil || !f.mayAsk() {
		t.Fatalf("it is decided %+v", f.decision)
	}
	w.Attachments.Cut(7)
	w.Attachments.Drop(7)
	w.Approvals.RunEnded(&policy.Sandbox{Attachment: 7})
	refusalOf(t, f.askAll(t.Context(), f.request, late, nil), policy.UnknownSandbox)
	if all := w.Approvals.Questions(t.Context(), ^uint64(0)).Questions; len(all) != 0 {
		t.Errorf("there is %+v", all)
	}
}

// TestAnAnswerOutlivesThatToAnotherRule, whatever changes of the policy.
func TestAnAnswerOutlivesThatToAnotherRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := "version: 1\nask: [{host: a.test, id: one}, {host: 93.184.216.34/32, id: two}]\n"
		w := newAsking(t, text[len("version: 1\n"):], time.Minute)
		w.Approvals.Clock = clockOf(time.Now())
		done := w.opens(t.Context(), ask(t, "a.test:443"))
		w.approves(t, w.question(t, 1, func(a *Question) bool { return a.Rule == "one" }), 10*time.Second, false)
		second := w.question(t, 1, func(a *Question) bool { return a.Rule == "two" })
		w.approves(t, second, time.Hour, false)
		passed(t, <-done)
		time.Sleep(20 * time.Second)
		change := func(text string, want bool) {
			t.Helper()
			if err := w.SetPolicy(t.Context(), compiled(t, text), "changed"); err != nil {
				t.Fatal(err)
			}
			if _, there := w.Approvals.Question(idOf(t, second)); there != want {
				t.Errorf("the answer is there: %t", there)
			}
		}
		change(text+"allow: [other.test]\n", true)
		change("version: 1\nask: [{host: a.test, id: one}]\n", false)
		w.Shut()
	})
}

// TestAnApprovalEndsWhileTheMachineSleeps: timers and monotonic readings stand still then.
func TestAnApprovalEndsWhileTheMachineSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAsking(t, "ask: [a.test]\n", time.Minute)
		var slept atomic.Int64
		w.Approvals.Clock = func() time.Duration { return time.Duration(slept.Load()) }
		one := w.opens(t.Context(), ask(t, "a.test:443"))
		q := w.question(t, 1, aboutHost("a.test"))
		w.approves(t, q, time.Hour, false)
		done := cut(passed(t, <-one))
		slept.Store(int64(time.Hour - time.Second))
		time.Sleep(2 * 10 * time.Second)
		passed(t, <-w.opens(t.Context(), ask(t, "a.test:443")))
		if now, _ := w.Approvals.Question(idOf(t, q)); time.Until(now.Until).Round(time.Second) != time.Second {
			t.Errorf("it says that it counts until %s, and it is %s", now.Until, time.Now())
		}
		slept.Store(int64(time.Hour))
		late := w.opens(t.Context(), ask(t, "a.test:443"))
		refusalOf(t, (<-late).err, policy.AskTimeout)
		awaitCut(t, "its time is over", done)
		w.Shut()
	})
}

// clockOf returns a clock for the bubble of synctest that began is of.
func clockOf(began time.Time) func() time.Duration {
	return func() time.Duration { return time.Since(began) }
}

// TestAChangeAsksWithUsageAgain puts in force the same policy, which reads usage, while a flow waits.
func TestAChangeAsksWithUsageAgain(t *testing.T) {
	w := newAsking(t, "ask: [{host: a.test, id: look}]\n", time.Minute)
	reading := func() *policy.Policy {
		return policy.New(opinion(func(r *policy.Request) policy.Decision {
			return policy.Decision{Verdict: policy.Ask, Rule: "look", Layer: policy.User}
		}), frugal(func(policy.Usage) bool { return true }))
	}
	if err := w.SetPolicy(t.Context(), reading(), "first"); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	done := w.opens(ctx, ask(t, "a.test:443"))
	q := w.question(t, 1, aboutHost("a.test"))
	if err := w.SetPolicy(t.Context(), reading(), "again"); err != nil {
		t.Fatal(err)
	}
	if now, ok := w.Approvals.Question(idOf(t, q)); !ok || now.Asked != 1 {
		t.Errorf("after the change: %t, %+v", ok, now)
	}
	leave()
	<-done
}
