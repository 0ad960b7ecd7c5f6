package logs

import (
	"fmt"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// TestRankingsAreBoundedAndExact counts values that are ever new, one that comes
// late and often, and one that sends much.
func TestRankingsAreBoundedAndExact(t *testing.T) {
	count := func(k *Ranking) {
		for i := range 20 * fewGroups {
			k.Add(fmt.Sprintf("v%d", i), 1, opened("A", "a.test", "deny"))
			if i > 10*fewGroups && i%4 == 0 {
				k.Add("late", 1, opened("A", "a.test", "allow"))
			}
			if i == 5*fewGroups {
				k.Add("sends", 1, closed(opened("A", "a.test", "allow"), 1000, 1, "closed"))
			}
		}
	}
	first := &Ranking{max: fewGroups}
	count(first)
	if first.Exact() || len(first.entries) > 2*fewGroups {
		t.Errorf("exact: %v, with %d values", first.Exact(), len(first.entries))
	}
	again := first.Again()
	count(again)
	total := again.rest.Count
	for _, e := range again.Top(0) {
		total += e.Count
	}
	late := again.Top(1)[0]
	if want := int64(10*fewGroups/4 - 1); late.Value != "late" || late.Count != want || late.Denied != 0 || total != 20*fewGroups+want+1 {
		t.Errorf("most is %+v, all are %d", late, total)
	}
	if e := again.entries["sends"]; e == nil || e.Up != 1000 || e.Count != 1 {
		t.Errorf("what sent much is %+v", e)
	}
}

func TestAnEntryHasTheTimesOfItsDecisions(t *testing.T) {
	var k Ranking
	r := opened("A", "a.test", "deny")
	first := r.Time
	for _, after := range []time.Duration{2, 0, 1} {
		r.Time = first.Add(after * time.Hour)
		k.Add("x", 1, r)
	}
	rest := k.Rest()
	rest.Join(k.Top(1)[0])
	if rest.Count != 3 || !rest.First.Equal(first) || !rest.Last.Equal(first.Add(2*time.Hour)) {
		t.Errorf("%+v", rest)
	}
}

func TestEveryFieldIsOne(t *testing.T) {
	for _, name := range FieldNames {
		field := Field(name)
		if field == nil {
			t.Errorf("%s is listed and is none", name)
			continue
		}
		field(&record.Record{})
		if got := field(sample()); got == "" && name != "addr" && name != "sni" && name != "status" {
			t.Errorf("%s of the sample is empty", name)
		}
	}
	if got := Field("domain")(opened("A", "a.b.evil.co.uk", "deny")); got != "evil.co.uk" {
		t.Errorf("the domain is %s", got)
	}
	if Field("kind") != nil || Field("nothing") != nil {
		t.Error("there are fields that are not listed")
	}
}
