package approvals

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/policy"

	"github.com/egressd/egressd/record"
)

// asks brings one flow of a sandbox to the list.
func (l *List) asks(sandbox, host string, n int) *Waiter {
	k := Subject{Sandbox: sandbox, Rule: "r", Host: host, Port: 443}
	r := policy.Request{Sandbox: policy.Sandbox{Name: sandbox}, Destination: policy.Destination{Host: host, Port: 443}}
	return l.Join(k, record.ID(n), record.ID(1<<20+n), &r, "", "", time.Now().Add(time.Hour))
}

// newList is for tests whose time is not the machine's.
func newList(wait time.Duration) *List {
	d := &List{OnApprovalEnd: func(Question) {}, Clock: clockOf(time.Now())}
	d.open.Store(true)
	d.wait.Store(int64(wait))
	return d
}

// clockOf is a list's clock for the bubble that the time is of.
func clockOf(began time.Time) func() time.Duration {
	return func() time.Duration { return time.Since(began) }
}

// TestNobodyTakesTheListFromOthers: one sandbox asks ten thousand things, and the questions of
// another, those before and those after, are there and can be answered.
func TestNobodyTakesTheListFromOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newList(time.Minute)
		before := d.asks("good", "before.test", 1)
		version := d.version
		away := 0
		for i := range 10_000 {
			if d.asks("bad", fmt.Sprintf("h%d.test", i), 100+i) == nil {
				away++
			}
		}
		if changes := d.version - version; changes > maxPendingPerSandbox+1 {
			t.Errorf("who follows the list is told %d times in a moment", changes)
		}
		after := d.asks("good", "after.test", 20_000)
		if before == nil || after == nil || !before.held || !after.held {
			t.Fatalf("%v, %v", before, after)
		}
		all, turned, _, _ := d.All()
		if len(all) != maxPendingPerSandbox+2 || away != 10_000-maxPendingPerSandbox || turned[0].Sandbox != "bad" || turned[0].Count != int64(away) || len(turned) != 1 {
			t.Errorf("%d questions, %d turned away, %v", len(all), away, turned)
		}
		if err := d.Answer(after.ID, Answer{Yes: true, Lasts: time.Hour}); err != nil {
			t.Error(err)
		}
		if state, _, _, _ := after.Look(); state != Approved {
			t.Errorf("it is %s", state)
		}
	})
}

// TestTheWholeListIsShared: sandboxes beyond number have a question each, and who has many gives way.
func TestTheWholeListIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newList(0)
		for i := range maxPending {
			d.asks(fmt.Sprintf("s%d", i/maxPendingPerSandbox), fmt.Sprintf("h%d.test", i), 1+i)
		}
		for i := range maxPending / maxPendingPerSandbox * (maxPendingPerSandbox / 2) {
			if d.asks(fmt.Sprintf("late%d", i), "a.test", 10_000+i) == nil {
				t.Fatalf("sandbox %d finds no room for one question", i)
			}
		}
		if all, _, _, _ := d.All(); len(all) != maxPending {
			t.Errorf("%d questions", len(all))
		}
		kept := map[string]int{}
		for _, q := range d.byID {
			kept[q.Subject.Sandbox]++
		}
		if kept["s0"] < maxPendingPerSandbox/2-1 || d.byID[1] == nil {
			t.Errorf("sandbox s0 has %d left, its first: %v", kept["s0"], d.byID[1] != nil)
		}
	})
}

// TestWhoWaitsIsCounted: of one sandbox, and of all.
func TestWhoWaitsIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newList(time.Minute)
		var all []*Waiter
		come := func(sandbox string, n int) {
			if c := d.asks(sandbox, "a.test", n); c != nil {
				all = append(all, c)
			}
		}
		for i := range 10 * maxHeldPerSandbox {
			come("one", i)
		}
		if d.held != maxHeldPerSandbox {
			t.Errorf("%d of one sandbox are held", d.held)
		}
		for i := range 2 * maxHeld {
			come(fmt.Sprint(i%100), 10_000+i)
		}
		if d.held > maxHeld || d.held < maxHeld*9/10 {
			t.Errorf("%d of all are held", d.held)
		}
		for _, c := range all {
			c.Leave()
		}
		if d.held != 0 {
			t.Errorf("%d are held when all have left", d.held)
		}
		for o, of := range d.bySandbox {
			if of.held != 0 {
				t.Errorf("%v: %d are held when all have left", o, of.held)
			}
		}
	})
}

// flowOf brings one flow of a network of a sandbox to the list.
func (l *List) flowOf(sandbox string, attachment uint32, host string, n int) *Waiter {
	r := policy.Request{Sandbox: policy.Sandbox{Name: sandbox, Attachment: attachment}, Destination: policy.Destination{Host: host, Port: 443}}
	return l.Join(Subject{Sandbox: sandbox, Rule: "r", Host: host, Port: 443}, record.ID(n), record.ID(1<<20+n), &r, "", "", time.Now().Add(time.Hour))
}

// TestWhoEntersAnewIsNobodyElse: a sandbox that leaves and comes again has the questions and
// the places of one, and others find theirs.
func TestWhoEntersAnewIsNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newList(time.Minute)
		for i := range 2 * maxPending {
			if c := d.flowOf("bad", uint32(1+i), fmt.Sprintf("a%d.test", i), 1+i); (c != nil) != (i < maxPendingPerSandbox) {
				t.Fatalf("question %d finds room: %t", i, c != nil)
			}
		}
		for i := range 2 * maxHeld {
			d.flowOf("bad", 1, "a0.test", 10_000+i)
		}
		if d.held != maxHeldPerSandbox {
			t.Errorf("%d of its flows are held", d.held)
		}
		if c := d.flowOf("good", 0, "b.test", 20_000); c == nil || !c.held {
			t.Errorf("another sandbox finds %+v", c)
		}
	})
}

// TestTheLastPlacesAreForWhoHasNone: some that take all they get leave others one each.
func TestTheLastPlacesAreForWhoHasNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newList(time.Minute)
		for i := range 16 * maxHeldPerSandbox {
			d.flowOf(fmt.Sprint("greedy", i/maxHeldPerSandbox), 0, "a.test", 1+i)
		}
		for i := range 8 {
			if c := d.flowOf(fmt.Sprint("late", i), 0, "a.test", 10_000+i); c == nil || !c.held {
				t.Errorf("the flow of sandbox %d is not held, of %d that are", i, d.held)
			}
		}
	})
}

// TestQuestionsAreForgotten when nobody asks them any more, as answers when their time is over.
func TestQuestionsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newList(0)
		var ended []record.ID
		d.OnApprovalEnd = func(q Question) { ended = append(ended, q.ID) }
		there := func() (ids []record.ID) {
			all, _, _, _ := d.All()
			for _, q := range all {
				ids = append(ids, q.ID)
			}
			return ids
		}
		d.asks("one", "a.test", 1)
		d.asks("one", "b.test", 2)
		time.Sleep(listedFor - time.Second)
		d.asks("one", "b.test", 3) // comes to the one before
		time.Sleep(2 * time.Second)
		if got := there(); fmt.Sprint(got) != "["+record.ID(2).String()+"]" {
			t.Errorf("there are %v", got)
		}
		if err := d.Answer(1, Answer{Yes: true, Lasts: time.Hour}); err != ErrNoQuestion {
			t.Errorf("what is forgotten is answered: %v", err)
		}
		if err := d.Answer(2, Answer{Yes: true, Lasts: time.Hour}); err != nil {
			t.Fatal(err)
		}
		r := policy.Request{Sandbox: policy.Sandbox{Name: "one"}, Destination: policy.Destination{Host: "b.test", Port: 443}}
		time.Sleep(time.Hour - time.Second)
		if len(d.Of(9, &r)) != 1 || !d.AllApply(record.ID(2).String(), 9) {
			t.Error("it does not count as long as it should")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if d.Of(9, &r) != nil || d.AllApply(record.ID(2).String(), 9) || len(there()) != 0 || len(ended) != 1 {
			t.Errorf("it counts still, or is there: %v; ended %v", there(), ended)
		}
		if len(d.bySubject)+len(d.byDestination)+len(d.bySandbox) != 0 || d.approvals.Load() != 0 {
			t.Errorf("left behind: %v %v %v %d", d.bySubject, d.byDestination, d.bySandbox, d.approvals.Load())
		}
	})
}

// TestATemplateIsOneHolder has a thousand sandboxes of a template ask, before a sandbox asks that is none of it.
func TestATemplateIsOneHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newList(time.Minute)
		ask := func(who policy.Sandbox, n int) *Waiter {
			r := policy.Request{Sandbox: who, Destination: policy.Destination{Host: "a.test", Port: 443}}
			return d.Join(Subject{Sandbox: who.Name, Rule: "r", Host: "a.test", Port: 443}, record.ID(n), record.ID(1<<20+n), &r, "", "", time.Now().Add(time.Hour))
		}
		for i := range 1000 {
			ask(policy.Sandbox{Name: fmt.Sprint("t-", i), Template: "t-{id}"}, i)
		}
		if d.held > maxHeld/2 {
			t.Errorf("%d flows of one template are held, of %d of all", d.held, maxHeld)
		}
		if q := ask(policy.Sandbox{Name: "plain"}, 2000); q == nil || !q.held {
			t.Errorf("a sandbox of no template finds no space: %+v", q)
		}
	})
}

// TestAQuestionSaysWhenItGivesUp: the first of those that wait, without those that have left and those that are not held.
func TestAQuestionSaysWhenItGivesUp(t *testing.T) {
	d := newList(time.Minute)
	now := time.Now()
	about := Subject{Sandbox: "one", Rule: "r", Host: "a.test", Port: 443}
	r := policy.Request{Sandbox: policy.Sandbox{Name: "one"}, Destination: policy.Destination{Host: "a.test", Port: 443}}
	var all []*Waiter
	for i, late := range []time.Time{now.Add(30 * time.Second), {}, now.Add(20 * time.Second), now.Add(40 * time.Second)} {
		all = append(all, d.Join(about, 1, record.ID(10+i), &r, "", "", late))
	}
	for i, want := range []time.Time{now.Add(20 * time.Second), now.Add(30 * time.Second), now.Add(40 * time.Second), {}} {
		if listed, _, _, _ := d.All(); len(listed) != 1 || !listed[0].GivesUp().Equal(want) {
			t.Errorf("after %d have left: %v, want %v", i, listed[0].GivesUp(), want)
		}
		if i < 3 {
			all[[]int{2, 0, 3}[i]].Leave()
		}
	}
}
