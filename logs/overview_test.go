package logs

import (
	"fmt"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// fewGroups is the bound of the overviews in these tests.
const fewGroups = 500

// counted is an overview of decisions, added once more where that is needed.
func counted(decisions func(add func(*record.Record))) *Overview {
	o := &Overview{max: fewGroups}
	decisions(o.Add)
	if !o.Exact() {
		o = o.Again()
		decisions(o.Add)
	}
	return o
}

func total(groups []*Group) (n int64) {
	for _, g := range groups {
		n += g.Count
	}
	return n
}

// TestAFloodOfNamesHidesNothing has one sandbox ask for ever new names while
// another one, and the same one where it was allowed to, do something else, once.
func TestAFloodOfNamesHidesNothing(t *testing.T) {
	const flood = 3 * fewGroups
	o := counted(func(add func(*record.Record)) {
		for i := range flood {
			r := opened("F", fmt.Sprintf("h%d.test", i), "deny")
			r.Time = r.Time.Add(time.Duration(i) * time.Second)
			add(r)
			switch {
			case i == flood/2:
				add(opened("G", "once.example", "allow"))
				other := opened("H", "other.example", "deny")
				other.Sandbox = "web"
				add(other)
			case i > 2*fewGroups && i%10 == 0: // late, and often
				add(opened("I", "late.example", "deny"))
			case i == flood/3:
				sends := opened("J", "sends.example", "deny")
				sends.Bytes = &record.Bytes{Up: 1000}
				add(sends)
			}
		}
	})
	if o.Len() > 2*fewGroups+5 || total(o.Section("deny")) != flood+2+fewGroups/10-1 || total(o.Section("allow")) != 1 {
		t.Errorf("%d lines, %d refusals", o.Len(), total(o.Section("deny")))
	}
	seen := map[string]*Group{}
	for _, g := range append(o.Section("deny"), o.Section("allow")...) {
		seen[g.Destination] = g
	}
	for host, count := range map[string]int64{"once.example:443": 1, "other.example:443": 1, "late.example:443": fewGroups/10 - 1, "sends.example:443": 1} {
		if g := seen[host]; g == nil || g.Count != count {
			t.Errorf("%s is %+v, want a count of %d", host, g, count)
		}
	}
	rest := seen[Beyond]
	if rest == nil || rest.Who != "ci" || rest.Allow != "" || rest.Why != "default-deny" {
		t.Errorf("the rest is %+v", rest)
	}
}

// TestNamesBelowOneDomainAreFolded has names carry something out.
func TestNamesBelowOneDomainAreFolded(t *testing.T) {
	const flood = 5 * fewGroups
	o := &Overview{max: fewGroups}
	for i := range flood {
		o.Add(opened(fmt.Sprintf("F%d", i), fmt.Sprintf("%d.tunnel.evil.example", i), "deny"))
		if i%100 == 0 {
			o.Add(opened("A", "a.example", "allow"))
			address := opened("B", fmt.Sprintf("192.0.2.%d", i/100), "deny")
			o.Add(address)
		}
	}
	if !o.Exact() {
		t.Error("lines were dropped where folding was enough")
	}
	first := o.Section("deny")[0]
	if first.Destination != "*.evil.example:443" || first.Allow != "" || first.Count < flood-2*fewGroups {
		t.Errorf("the first line is %+v", first)
	}
	if total(o.Section("deny")) != flood+25 || total(o.Section("allow")) != 25 || o.Len() > 2*fewGroups+60 {
		t.Errorf("%d refusals, %d allowed, %d lines", total(o.Section("deny")), total(o.Section("allow")), o.Len())
	}
}

// TestTwoFloodsGetTheSameRoom has two sandboxes flood, one after the other.
func TestTwoFloodsGetTheSameRoom(t *testing.T) {
	o := counted(func(add func(*record.Record)) {
		for i := range 20 * fewGroups {
			r := opened("F", fmt.Sprintf("h%d.test", i), "deny")
			if i < 4*fewGroups {
				r.Sandbox = "first"
			}
			add(r)
			if i >= 5*fewGroups && i < 5*fewGroups+10 {
				add(opened("F", "often.example", "deny"))
			}
		}
	})
	lines := map[string]int{}
	for _, g := range o.Section("deny") {
		lines[g.Who]++
		lines[g.Destination] += int(g.Count)
	}
	if lines["first"] < fewGroups/2 || lines["ci"] < fewGroups/2 || lines["often.example:443"] != 10 {
		t.Errorf("lines of the first %d, of the second %d, with %d of what was often", lines["first"], lines["ci"], lines["often.example:443"])
	}
}

// TestAddressesAreNoDomains asks for ever new addresses.
func TestAddressesAreNoDomains(t *testing.T) {
	o := counted(func(add func(*record.Record)) {
		for i := range 3 * fewGroups {
			add(opened("F", fmt.Sprintf("198.%d.%d.%d", 18+i>>16, i>>8&255, i&255), "deny"))
			add(opened("F", fmt.Sprintf("2001:db8::%x", i), "deny"))
		}
	})
	if total(o.Section("deny")) != 6*fewGroups || o.Len() > 2*fewGroups+1 {
		t.Errorf("%d refusals in %d lines", total(o.Section("deny")), o.Len())
	}
}

// TestOnlyDecisionsAreCounted leaves out what is about egressd, and what is no
// verdict.
func TestOnlyDecisionsAreCounted(t *testing.T) {
	var o Overview
	for _, kind := range []record.Kind{record.KindPolicy, record.KindStart, "signal", "later"} {
		r := opened("A", "a.test", "deny")
		r.Kind = kind
		o.Add(r)
	}
	o.Add(&record.Record{Kind: record.KindOpen})
	if o.Len() != 0 {
		t.Errorf("%d groups", o.Len())
	}
}

// TestARecordCountsAsOftenAsItSays has repeats counted in one record.
func TestARecordCountsAsOftenAsItSays(t *testing.T) {
	var o Overview
	var k Ranking
	repeats := opened("A", "a.test", "deny")
	repeats.Count = 41
	tally := DecisionJoiner{Emit: func(r *record.Record) { o.Add(r); k.Add("x", r.Times(), r) }}
	tally.Add(opened("A", "a.test", "deny"))
	tally.Add(repeats)
	tally.Flush(OutcomeOpen)
	if g := o.Section("deny")[0]; g.Count != 42 || k.Top(1)[0].Count != 42 || k.Top(1)[0].Denied != 42 {
		t.Errorf("%d refusals, ranked %+v, want 42", g.Count, k.Top(1)[0])
	}
}

// TestWhatWouldAllowIsOfTheLastRefusal has a sandbox get Rego of its own, where no line of a list helps.
func TestWhatWouldAllowIsOfTheLastRefusal(t *testing.T) {
	var o Overview
	own := opened("B", "a.test", "deny")
	own.Decision.Layer, own.Decision.Rule, own.Time = "sandbox", "rego", own.Time.Add(time.Second)
	o.Add(opened("A", "a.test", "deny"))
	if g := o.Section("deny")[0]; g.Allow != "a.test" || g.Flow != "A" {
		t.Errorf("first %+v", g)
	}
	o.Add(own)
	if all := o.Section("deny"); len(all) != 2 || all[0].Allow+all[1].Allow != "a.test" {
		t.Errorf("then %+v", all)
	}
}

// TestAFixHasAnIDOfOneRequest has a denial with an id of its own, and then one whose id others share.
func TestAFixHasAnIDOfOneRequest(t *testing.T) {
	var o Overview
	shared := opened("B", "a.test", "deny")
	shared.Shared, shared.Time = true, shared.Time.Add(time.Second)
	o.Add(shared)
	if g := o.Section("deny")[0]; g.Allow != "" || g.Flow != "B" {
		t.Errorf("a shared id: %+v", g)
	}
	o = Overview{}
	o.Add(opened("A", "a.test", "deny"))
	o.Add(shared)
	if g := o.Section("deny")[0]; g.Allow != "a.test" || g.Flow != "A" || g.Count != 2 {
		t.Errorf("then %+v", g)
	}
}
