package egress

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/egressd/egressd/policy"
)

// TestAChangeOfThePolicyCostsNoQuestion: who waits goes on to, however often what has nothing
// to do with it changes, and what is approved once is so for it.
func TestAChangeOfThePolicyCostsNoQuestion(t *testing.T) {
	text := "ask: [{host: a.test, id: look}]\n"
	w := newAsking(t, text, time.Minute)
	done := w.opens(t.Context(), ask(t, "a.test:443"))
	q := w.question(t, 1, aboutHost("a.test"))
	for i := range 3 * askRounds {
		p := compiled(t, fmt.Sprintf("version: 1\n%sallow: [h%d.test]\n", text, i))
		if err := w.SetPolicy(t.Context(), p, "grants"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond) // for the flow to look, most times
		if now, ok := w.Ask(idOf(t, q)); !ok || now.Waiting != 1 || now.Asked != 1 {
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
		w.desk.clock = clockOf(time.Now())
		began := time.Now()
		done := w.opens(t.Context(), ask(t, "a.test:443"))
		q := w.question(t, 1, func(a *Ask) bool { return a.Rule == "one" })
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
	f := w.newFlow(peer, r)
	if f.decide(t.Context(), f.request) == nil || !f.mayAsk() {
		t.Fatalf("it is decided %+v", f.decision)
	}
	if err := w.SetPolicy(t.Context(), compiled(t, "version: 1\ndeny: [a.test]\n"), "denied"); err != nil {
		t.Fatal(err)
	}
	refusal := f.askAll(t.Context(), f.request, nil, time.Now().Add(time.Minute))
	refusalOf(t, refusal, policy.RuleDeny)
	if all := w.Asks(t.Context(), ^uint64(0)).Questions; len(all) != 0 {
		t.Errorf("there is %+v", all)
	}
}

// TestAnAnswerOutlivesThatToAnotherRule, whatever changes of the policy.
func TestAnAnswerOutlivesThatToAnotherRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := "version: 1\nask: [{host: a.test, id: one}, {host: 93.184.216.34/32, id: two}]\n"
		w := newAsking(t, text[len("version: 1\n"):], time.Minute)
		w.desk.clock = clockOf(time.Now())
		done := w.opens(t.Context(), ask(t, "a.test:443"))
		w.approves(t, w.question(t, 1, func(a *Ask) bool { return a.Rule == "one" }), 10*time.Second, false)
		second := w.question(t, 1, func(a *Ask) bool { return a.Rule == "two" })
		w.approves(t, second, time.Hour, false)
		passed(t, <-done)
		time.Sleep(20 * time.Second)
		change := func(text string, want bool) {
			t.Helper()
			if err := w.SetPolicy(t.Context(), compiled(t, text), "changed"); err != nil {
				t.Fatal(err)
			}
			if _, there := w.Ask(idOf(t, second)); there != want {
				t.Errorf("the answer is there: %t", there)
			}
		}
		change(text+"allow: [other.test]\n", true)
		change("version: 1\nask: [{host: a.test, id: one}]\n", false)
		w.Shut()
	})
}

// TestTheTimeOfAnAnswerIsItsTime, also where a flow that waited has not looked yet.
func TestTheTimeOfAnAnswerIsItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(time.Minute)
		waits := d.asks("one", "a.test", 1)
		if err := d.answer(1, true, time.Minute, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		if all := d.approvals(9, &waits.q.request); len(all) != 0 || d.answers.Load() != 0 {
			t.Errorf("it counts still: %v", all)
		}
		waits.leave()
		if d.held != 0 || len(d.pending) != 0 {
			t.Errorf("%d are held, %v", d.held, d.pending)
		}
	})
}

// TestAnAnswerIsToWhoeverAsksTheSame: also at a newer question, brought up since the older was
// approved once.
func TestAnAnswerIsToWhoeverAsksTheSame(t *testing.T) {
	for _, yes := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			d := newDesk(time.Minute)
			d.asks("one", "a.test", 1).answeredOnce(t)
			newer := d.asks("one", "a.test", 2)
			_, _, _, changed := newer.look()
			if err := d.answer(1, yes, time.Hour, false); err != nil {
				t.Fatal(err)
			}
			select {
			case <-changed:
			default:
				t.Error("who waits is not told")
			}
			if state, _, _, _ := newer.look(); state != map[bool]askState{true: askApproved, false: askRejected}[yes] {
				t.Errorf("who waits is told %s", state)
			}
			if len(d.approvals(newer.flow, &newer.q.request)) == 1 != yes || len(d.byID) != 1 {
				t.Errorf("approved: %t, of %d questions", !yes, len(d.byID))
			}
			newer.leave()
			if len(d.pending) != 0 {
				t.Errorf("left behind: %v", d.pending)
			}
		})
	}
}

// answeredOnce has the flow of t pass by an approval for it alone.
func (t *ticket) answeredOnce(test *testing.T) {
	test.Helper()
	if err := t.desk.answer(t.q.id, true, time.Hour, true); err != nil {
		test.Fatal(err)
	}
	t.leave()
}

// TestAnApprovalEndsWhileTheMachineSleeps: timers and monotonic readings stand still then.
func TestAnApprovalEndsWhileTheMachineSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAsking(t, "ask: [a.test]\n", time.Minute)
		var slept atomic.Int64
		w.desk.clock = func() time.Duration { return time.Duration(slept.Load()) }
		one := w.opens(t.Context(), ask(t, "a.test:443"))
		q := w.question(t, 1, aboutHost("a.test"))
		w.approves(t, q, time.Hour, false)
		done := cut(passed(t, <-one))
		slept.Store(int64(time.Hour - time.Second))
		time.Sleep(2 * answerLook)
		passed(t, <-w.opens(t.Context(), ask(t, "a.test:443")))
		if now, _ := w.Ask(idOf(t, q)); time.Until(now.Until).Round(time.Second) != time.Second {
			t.Errorf("it says that it counts until %s, and it is %s", now.Until, time.Now())
		}
		slept.Store(int64(time.Hour))
		late := w.opens(t.Context(), ask(t, "a.test:443"))
		refusalOf(t, (<-late).err, policy.AskTimeout)
		awaitCut(t, "its time is over", done)
		w.Shut()
	})
}

// TestTheTimeOfAnAnswerIsOne: the clocks are not read at once, and time passes in between.
func TestTheTimeOfAnAnswerIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(time.Minute)
		since := d.clock
		var read, slept time.Duration
		d.clock = func() time.Duration {
			read += time.Microsecond
			return since() + read + slept
		}
		waits := d.asks("one", "a.test", 1)
		defer waits.leave()
		if err := d.answer(1, true, time.Hour, false); err != nil {
			t.Fatal(err)
		}
		until := func() time.Time {
			all, _, _, _ := d.all()
			return all[0].until
		}
		first := until()
		for range 3 {
			time.Sleep(answerLook)
			if now := until(); now != first {
				t.Errorf("it counts until %s, and until %s", first, now)
			}
		}
		slept = time.Minute
		second := until()
		if early := first.Sub(second).Round(time.Second); early != slept {
			t.Errorf("it ends %s earlier after a sleep of %s", early, slept)
		}
		if now := until(); now != second {
			t.Errorf("it counts until %s, and until %s", second, now)
		}
	})
}

// TestTheTimeOfAnAnswerIsToldByTheClock as it is now: where that was set, what was told before is of no use.
func TestTheTimeOfAnAnswerIsToldByTheClock(t *testing.T) {
	const by = 8 * time.Hour
	setBack := func(at *time.Time) { *(*uint64)(unsafe.Pointer(at)) -= uint64(by/time.Second) << 30 } // its wall clock alone
	d := newDesk(time.Minute)
	waits := d.asks("one", "a.test", 1)
	defer waits.leave()
	if err := d.answer(1, true, time.Hour, false); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.byID[1]
	want := d.ends(q)
	setBack(&q.until)
	setBack(&q.told)
	if apart := want.Round(0).Sub(q.told.Round(0)); apart != by || !q.told.Equal(want) {
		t.Fatalf("the clock was set by %s", apart)
	}
	if got := d.ends(q); got.Round(0).Sub(want.Round(0)).Abs() > time.Second {
		t.Errorf("it is told to end at %s, want %s", got, want)
	}
}
