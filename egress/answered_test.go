package egress

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

func TestAnAddressStandsForTheOnlyNameThatWasTold(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.1")
	start := time.Unix(1000, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	type answer struct {
		name  string
		until int
	}
	for _, row := range []struct {
		says  string
		told  []answer
		now   int
		wants string
	}{
		{"nothing was told", nil, 0, ""},
		{"one name", []answer{{"a", 10}}, 9, "a"},
		{"one name, too late", []answer{{"a", 10}}, 10, ""},
		{"one name, told again", []answer{{"a", 10}, {"a", 20}}, 15, "a"},
		{"one name, told again for shorter", []answer{{"a", 20}, {"a", 10}}, 15, "a"},
		{"two names", []answer{{"a", 10}, {"b", 20}}, 5, ""},
		{"two names, of which one has gone", []answer{{"a", 10}, {"b", 20}}, 15, "b"},
		{"two names, of which the later one has gone", []answer{{"a", 20}, {"b", 10}}, 15, "a"},
		{"three names, of which two are left", []answer{{"a", 30}, {"b", 10}, {"c", 20}}, 15, ""},
		{"three names, in another order", []answer{{"b", 10}, {"a", 30}, {"c", 20}}, 15, ""},
		{"three names, of which one is left", []answer{{"b", 10}, {"c", 20}, {"a", 30}}, 25, "a"},
	} {
		var a answers
		for _, told := range row.told {
			a.add(addr, told.name, start, at(told.until))
		}
		if got := a.only(addr, at(row.now)); got != row.wants {
			t.Errorf("%s: %q, want %q", row.says, got, row.wants)
		}
	}
}

// TestAnswersAreBounded has a sandbox ask for more than is remembered. What is not
// remembered has no name, also where another name has the address.
func TestAnswersAreBounded(t *testing.T) {
	var a answers
	now := time.Unix(1000, 0)
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}) }
	for i := range answersMost {
		a.add(addr(i), fmt.Sprint("n", i), now, now.Add(time.Second))
	}
	a.add(addr(answersMost), "late", now, now.Add(time.Hour))
	if len(a.byAddr) != answersMost || a.only(addr(answersMost), now) != "" || a.only(addr(7), now) != "n7" {
		t.Errorf("%d are remembered, the last one as %q", len(a.byAddr), a.only(addr(answersMost), now))
	}
	now = now.Add(2 * time.Second)
	a.add(addr(answersMost), "late", now, now.Add(time.Hour))
	if len(a.byAddr) != 1 || a.only(addr(answersMost), now) != "late" {
		t.Errorf("%d are remembered after their time", len(a.byAddr))
	}
}

// TestWhatWasToldHasToBeUsedFirst has an answer without a life, and more sandboxes than
// are remembered.
func TestWhatWasToldHasToBeUsedFirst(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	w.config.Answers = true
	i, err := w.Inquire(peer, questionOf("a.test", "A"))
	if err != nil {
		t.Fatal(err)
	}
	i.Told(somewhere, 0)
	if got := w.Answered(peer, somewhere[0]); got != "a.test" {
		t.Errorf("right after its answer the address stands for %q", got)
	}
	for n := range sandboxesMost {
		w.answersOf(fmt.Sprint(n))
	}
	if len(w.told) != sandboxesMost || w.answersOf("one more") != nil {
		t.Errorf("the answers of %d sandboxes are remembered", len(w.told))
	}
}
