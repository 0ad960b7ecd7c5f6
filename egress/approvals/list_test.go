package approvals

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// TestTheTimeOfAnAnswerIsItsTime, also where a flow that waited has not looked yet.
func TestTheTimeOfAnAnswerIsItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newList(time.Minute)
		waits := d.asks("one", "a.test", 1)
		if err := d.Answer(1, Answer{Yes: true, Lasts: time.Minute}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		if all := d.Of(9, &waits.Request); len(all) != 0 || d.approvals.Load() != 0 {
			t.Errorf("it counts still: %v", all)
		}
		waits.Leave()
		if d.held != 0 || len(d.bySandbox) != 0 {
			t.Errorf("%d are held, %v", d.held, d.bySandbox)
		}
	})
}

// TestAnAnswerIsToWhoeverAsksTheSame: also at a newer question, brought up since the older was
// approved once.
func TestAnAnswerIsToWhoeverAsksTheSame(t *testing.T) {
	for _, yes := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			d := newList(time.Minute)
			d.asks("one", "a.test", 1).answeredOnce(t)
			newer := d.asks("one", "a.test", 2)
			_, _, _, changed := newer.Look()
			if err := d.Answer(1, Answer{Yes: yes, Lasts: time.Hour}); err != nil {
				t.Fatal(err)
			}
			select {
			case <-changed:
			default:
				t.Error("who waits is not told")
			}
			if state, _, _, _ := newer.Look(); state != map[bool]State{true: Approved, false: Rejected}[yes] {
				t.Errorf("who waits is told %s", state)
			}
			if len(d.Of(newer.flow, &newer.Request)) == 1 != yes || len(d.byID) != 1 {
				t.Errorf("approved: %t, of %d questions", !yes, len(d.byID))
			}
			newer.Leave()
			if len(d.bySandbox) != 0 {
				t.Errorf("left behind: %v", d.bySandbox)
			}
		})
	}
}

// answeredOnce has the flow of w pass by an approval for it alone.
func (w *Waiter) answeredOnce(t *testing.T) {
	t.Helper()
	if err := w.list.Answer(w.ID, Answer{Yes: true, Lasts: time.Hour, Once: true}); err != nil {
		t.Fatal(err)
	}
	w.Leave()
}

// TestTheTimeOfAnAnswerIsOne: the clocks are not read at once, and time passes in between.
func TestTheTimeOfAnAnswerIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newList(time.Minute)
		since := d.Clock
		var read, slept time.Duration
		d.Clock = func() time.Duration {
			read += time.Microsecond
			return since() + read + slept
		}
		waits := d.asks("one", "a.test", 1)
		defer waits.Leave()
		if err := d.Answer(1, Answer{Yes: true, Lasts: time.Hour}); err != nil {
			t.Fatal(err)
		}
		until := func() time.Time {
			all, _, _, _ := d.All()
			return all[0].Until
		}
		first := until()
		for range 3 {
			time.Sleep(answerCheck)
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
	d := newList(time.Minute)
	waits := d.asks("one", "a.test", 1)
	defer waits.Leave()
	if err := d.Answer(1, Answer{Yes: true, Lasts: time.Hour}); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.byID[1]
	want := d.endOf(q)
	setBack(&q.Until)
	setBack(&q.shown)
	if apart := want.Round(0).Sub(q.shown.Round(0)); apart != by || !q.shown.Equal(want) {
		t.Fatalf("the clock was set by %s", apart)
	}
	if got := d.endOf(q); got.Round(0).Sub(want.Round(0)).Abs() > time.Second {
		t.Errorf("it is told to end at %s, want %s", got, want)
	}
}

// TestTheQuestionsOfAnEndedRunDisappear has two runs of one sandbox, a listener, and an answer for the next run.
func TestTheQuestionsOfAnEndedRunDisappear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newList(time.Minute)
		own := d.flowOf("ci", 1, "own.test", 1)
		d.flowOf("ci", 1, "shared.test", 2)
		d.flowOf("ci", 2, "shared.test", 3)
		d.flowOf("ci", 1, "listener.test", 4)
		d.flowOf("ci", 0, "listener.test", 5)
		answered := d.flowOf("ci", 1, "answered.test", 6)
		if err := d.Answer(answered.ID, Answer{Yes: true, Lasts: time.Hour}); err != nil {
			t.Fatal(err)
		}
		left := func() (hosts []string) {
			all, _, _, _ := d.All()
			for _, q := range all {
				hosts = append(hosts, q.Subject.Host)
			}
			return hosts
		}
		d.RunEnded(&policy.Sandbox{Attachment: 1})
		if got := left(); !slices.Equal(got, []string{"shared.test", "listener.test", "answered.test"}) {
			t.Errorf("after the first run: %v", got)
		}
		if state, _, _, _ := own.Look(); state != Gone {
			t.Errorf("its own question is %s", state)
		}
		d.RunEnded(&policy.Sandbox{Attachment: 2})
		if got := left(); !slices.Equal(got, []string{"listener.test", "answered.test"}) {
			t.Errorf("after the second: %v", got)
		}
		next := policy.Request{Sandbox: policy.Sandbox{Name: "ci", Attachment: 3}, Destination: policy.Destination{Host: "answered.test", Port: 443}}
		if len(d.Of(1, &next)) != 1 {
			t.Error("the next run does not have the answer")
		}
		next.Sandbox.Name = "other"
		if len(d.Of(1, &next)) != 0 {
			t.Error("another sandbox has it")
		}
	})
}

// TestAnAnswerForThisRunEndsWithTheRun: with the last of the runs that asked, whoever comes meanwhile; a container is a run, too, and
// what comes by a listener is none.
func TestAnAnswerForThisRunEndsWithTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newList(time.Minute)
		var ended []record.ID
		d.OnApprovalEnd = func(q Question) { ended = append(ended, q.ID) }
		box := &policy.Container{ID: "c"}
		of := map[string]*policy.Sandbox{
			"run 1": {Name: "ci", Attachment: 1}, "run 2": {Name: "ci", Attachment: 2}, "run 3": {Name: "ci", Attachment: 3},
			"container": {Name: "ci", Container: box}, "listener": {Name: "ci"},
		}
		next := 0
		ask := func(host string, who ...string) record.ID {
			next++
			var w *Waiter
			for _, name := range who {
				r := policy.Request{Sandbox: *of[name], Destination: policy.Destination{Host: host, Port: 443}}
				w = d.Join(Subject{Sandbox: "ci", Rule: "r", Host: host, Port: 443}, record.ID(next), record.ID(1<<20+next), &r, "", "", time.Time{})
			}
			if w == nil {
				return 0
			}
			return w.ID
		}
		counts := func(id record.ID) bool {
			q, _, found := d.Find(id)
			return found && q.State != Pending
		}
		for _, row := range []struct {
			name  string
			asks  []string
			yes   bool
			later []string // runs that come after the answer
			end   []string // one after another: it counts until the last has ended
			none  bool     // there is no run whose end could be seen
		}{
			{name: "one run", asks: []string{"run 1"}, yes: true, end: []string{"run 1"}},
			{name: "no for one run", asks: []string{"run 1"}, end: []string{"run 1"}},
			{name: "two runs", asks: []string{"run 1", "run 2"}, yes: true, end: []string{"run 1", "run 2"}},
			{name: "a run that comes later", asks: []string{"run 1"}, later: []string{"run 2"}, end: []string{"run 1"}},
			{name: "a container", asks: []string{"container"}, yes: true, end: []string{"container"}},
			{name: "a run beside a listener", asks: []string{"listener", "run 1"}, yes: true, end: []string{"run 1"}},
			{name: "a listener", asks: []string{"listener"}, yes: true, none: true},
		} {
			id := ask(row.name, row.asks...)
			err := d.Answer(id, Answer{Yes: row.yes, Lasts: time.Hour, ThisRun: true})
			if row.none {
				if err != ErrNoRun {
					t.Errorf("%s: %v", row.name, err)
				}
				continue
			}
			if err != nil || !counts(id) {
				t.Fatalf("%s: %v", row.name, err)
			}
			ask(row.name, row.later...)
			for i, who := range row.end {
				d.RunEnded(of["run 3"]) // which is another one
				d.RunEnded(of["listener"])
				if !counts(id) {
					t.Errorf("%s: it has ended before %s has", row.name, who)
				}
				d.RunEnded(of[who])
				if last := i == len(row.end)-1; counts(id) == last {
					t.Errorf("%s: it counts: %t after the end of %s", row.name, !last, who)
				}
			}
			if row.yes != slices.Contains(ended, id) {
				t.Errorf("%s: flows are told of the end of an approval: %t", row.name, !row.yes)
			}
			if err := d.Answer(id, Answer{Yes: true, Lasts: time.Hour}); err != ErrNoQuestion {
				t.Errorf("%s: after its end it is answered: %v", row.name, err)
			}
		}
	})
}

// TestAnAnswerForThisRunIsOfTheRunThatAsks has a question whose run has ended, and one of a process that is itself the run.
func TestAnAnswerForThisRunIsOfTheRunThatAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newList(time.Minute)
		over := d.flowOf("ci", 1, "a.test", 1)
		if err := d.Answer(over.ID, Answer{Yes: true, Lasts: time.Hour}); err != nil {
			t.Fatal(err)
		}
		d.RunEnded(&policy.Sandbox{Attachment: 1})
		if err := d.Answer(over.ID, Answer{Yes: true, Lasts: time.Hour, ThisRun: true}); err != ErrNoRun {
			t.Errorf("for a run that has ended: %v", err)
		}
		one := newList(time.Minute)
		one.OneRun = true
		q := one.flowOf("app", 0, "a.test", 1)
		if err := one.Answer(q.ID, Answer{Yes: true, Lasts: time.Hour, ThisRun: true}); err != nil {
			t.Errorf("in a process that is the run: %v", err)
		}
		one.RunEnded(&policy.Sandbox{})
		if all, _, _, _ := one.All(); len(all) != 1 || all[0].State != Approved || all[0].Runs() != 1 {
			t.Errorf("the list has %+v", all)
		}
	})
}
