package egress

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"

	"github.com/egressd/egressd/record"
)

// times is how many denials the records stand for.
func times(records []record.Record) (n int64) {
	for _, r := range records {
		n += r.Times()
	}
	return n
}

// from is a peer of the sandbox whose source is 10.0.0.n.
func from(n byte) sandbox.Peer {
	return sandbox.Peer{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 40000)}
}

// two are two sandboxes, told by their addresses.
func two() []sandbox.Entry {
	return []sandbox.Entry{
		{Name: "one", Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}},
		{Name: "two", Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/32")}},
	}
}

// TestAFloodOfNewNamesIsSummed has one sandbox be denied ever new names, and another one a few.
func TestAFloodOfNewNamesIsSummed(t *testing.T) {
	w := newWorldOf(t, policy.New(opinion(deny)), audit.Options{}, two())
	const flood, few = 20_000, 100
	began := time.Now()
	ids, summed := map[string]bool{}, map[string]bool{}
	for i := range flood {
		_, err := w.Open(t.Context(), from(1), ask(t, fmt.Sprintf("n%d.evil.test:443", i)))
		refusal := refusalOf(t, err, policy.RuleDeny)
		if known := ids[refusal.ID.String()]; known && !refusal.Summed {
			t.Fatalf("refusal %d has the id of an earlier one, and does not say so", i)
		}
		summed[refusal.ID.String()] = refusal.Summed
		ids[refusal.ID.String()] = true
		if i%(flood/few) == 0 {
			_, err := w.Open(t.Context(), from(2), ask(t, fmt.Sprintf("n%d.other.test:443", i)))
			ids[refusalOf(t, err, policy.RuleDeny).ID.String()] = true
		}
	}
	w.Records.Settle()
	seconds := int(time.Since(began)/time.Second) + 2
	by := map[string][]record.Record{}
	known := map[string]bool{}
	for _, r := range w.records(t, record.KindOpen) {
		by[r.Sandbox] = append(by[r.Sandbox], r)
		known[r.Flow] = true
	}
	if n, most := len(by["one"]), denialsBurst+seconds*(denialsRate+2); times(by["one"]) != flood || n > most {
		t.Errorf("%d records stand for %d denials of %d; want at most %d records", n, times(by["one"]), flood, most)
	}
	if n := len(by["two"]); n != few || times(by["two"]) != few {
		t.Errorf("%d records of %d denials of the other sandbox", n, few)
	}
	for _, r := range by["one"] {
		if r.Count == 0 && r.Shared != summed[r.Flow] {
			t.Fatalf("the record of %s says that it is shared: %v, and its reply %v", r.Flow, r.Shared, summed[r.Flow])
		}
	}
	for id := range ids {
		if !known[id] {
			t.Fatalf("the reply %s is in no record", id)
		}
	}
	sums := 0
	var last string
	for _, r := range by["one"] {
		if r.Names == nil {
			continue
		}
		sums++
		last = r.Names.Last
		if r.Dst == nil || r.Dst.Host != "*.evil.test" || r.Dst.Port != 443 || !strings.HasSuffix(r.Names.First, ".evil.test:443") ||
			r.Decision.Class != string(policy.RuleDeny) || r.Decision.Rule != "test" || r.Decision.Reason != "" {
			t.Errorf("a sum is %+v of %+v, %+v, %+v", r, r.Names, r.Dst, r.Decision)
		}
	}
	if sums == 0 || last != fmt.Sprintf("n%d.evil.test:443", flood-1) {
		t.Errorf("%d sums, the last name is %q", sums, last)
	}
}

// TestNoFloodExceedsTheBudget varies all that a sandbox can choose, for a minute.
func TestNoFloodExceedsTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, scarce := range []bool{false, true} {
			var o audit.Options
			burst, rate := denialsBurst+sightingsMost, denialsRate
			if scarce {
				o.Floor = 1 << 62
				burst, rate = scarceBurst+2*scarceSightings, scarceRate
			}
			w := newWorldOf(t, policy.New(opinion(deny)), o, two())
			w.config.NameLimits = names.Limits{PerSecond: 1e6}
			random := rand.New(rand.NewPCG(1, 2))
			name := func() string {
				return fmt.Sprintf("a%x.b%x.c%x.test", random.Uint32(), random.Uint32N(100), random.Uint32N(300))
			}
			ways := []func(){
				func() { w.Open(t.Context(), from(1), ask(t, fmt.Sprintf("%s:%d", name(), 1+random.Uint32N(65535)))) },
				func() {
					w.Open(t.Context(), from(1), ask(t, fmt.Sprintf("8.8.%d.%d:443", random.Uint32N(256), random.Uint32N(256))))
				},
				func() {
					r := ask(t, name()+":80")
					r.Via, r.HTTP = policy.ViaHTTP, &policy.HTTPRequest{Method: fmt.Sprintf("M%d", random.Uint32()), Path: "/" + name()}
					w.Open(t.Context(), from(1), r)
				},
				func() {
					w.Resolve(t.Context(), from(1), policy.DNSQuery{Name: name(), Type: fmt.Sprintf("TYPE%d", random.Uint32N(65535))})
				},
				func() {
					w.Resolve(t.Context(), from(1), policy.DNSQuery{Name: name(), Type: "A"})
				},
				func() { w.Refuse(from(1), policy.ViaHTTP, []byte(name()), policy.MalformedRequest, "bad") },
			}
			const seconds, each = 15, 1200
			sent := 0
			for range seconds {
				for i := range each {
					ways[i%len(ways)]()
					sent++
				}
				time.Sleep(time.Second)
			}
			w.Shut()
			w.Records.Settle()
			w.config.Log.Close()
			var denied []record.Record
			for _, r := range w.records(t, "") {
				if r.Decision != nil && r.Decision.Action == "deny" {
					denied = append(denied, r)
				}
			}
			rests := 2 * len(ways) // for each: its first, and the sum
			if most := burst + (seconds+1)*(rate+2*sumsMost+rests); times(denied) != int64(sent) || len(denied) > most {
				t.Errorf("scarce %t: %d records stand for %d denials of %d; want at most %d records", scarce, len(denied), times(denied), sent, most)
			}
		}
	})
}

// TestASumOfManyNamesHidesNoCanary has another canary sent when the budget is used up.
func TestASumOfManyNamesHidesNoCanary(t *testing.T) {
	first, second := "AKIAQ3EGCANARY77xZ9kLm", "ghp_4bD8sXwq0PmzT2vLrY6u"
	c, err := secret.NewCanaries([]secret.Canary{{Name: "first", Text: []byte(first)}, {Name: "second", Text: []byte(second)}})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorldOf(t, policy.New(opinion(allow)), audit.Options{Floor: 1 << 62}, nil)
	w.SetCanaries(c)
	send := func(i int, text string) {
		r := ask(t, fmt.Sprintf("n%d.test:80", i))
		r.HTTP = &policy.HTTPRequest{Method: "GET", Path: "/", Query: text}
		_, err := w.Open(t.Context(), peer, r)
		refusalOf(t, err, policy.Canary)
	}
	for i := range 10 * scarceBurst {
		send(i, first)
	}
	send(0, second)
	w.Records.Settle()
	named := map[string]int{}
	for _, r := range w.records(t, record.KindSignal) {
		named[r.Signal.Name]++
	}
	if named["second"] != 1 || named["first"] == 0 || named["first"] > scarceBurst+scarceSightings {
		t.Errorf("signals: %v", named)
	}
	if n := times(w.records(t, record.KindRequest)); n != 10*scarceBurst+1 {
		t.Errorf("the records stand for %d denials", n)
	}
}

// TestAFloodHidesNoDomain has a sandbox be denied 2,600 names of as many domains in four seconds, and then ask for one
// more domain twenty times. The first of these has a record of its own, and the others are counted with it or with
// an id that says that requests share it.
func TestAFloodHidesNoDomain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldOf(t, policy.New(opinion(deny)), audit.Options{}, two())
		deny := func(host string) string {
			_, err := w.Open(t.Context(), from(1), ask(t, host))
			return refusalOf(t, err, policy.RuleDeny).ID.String()
		}
		const flood = 2600
		for i := range flood {
			if i > 0 && i%650 == 0 {
				time.Sleep(time.Second)
			}
			deny(fmt.Sprintf("n.junk%d.test:443", i))
		}
		ids := map[string]bool{}
		for i := range 20 {
			ids[deny("drop.real.example:443")] = true
			for j := range 30 { // the flood goes on
				deny(fmt.Sprintf("n.again%d.test:443", 30*i+j))
			}
			if i%7 == 6 {
				time.Sleep(time.Second)
			}
		}
		w.Shut()
		w.Records.Settle()
		w.config.Log.Close()
		found := map[string]bool{}
		direct := 0
		for _, r := range w.records(t, record.KindOpen) {
			if ids[r.Flow] && r.Count == 0 {
				found[r.Flow] = true
				if r.Dst.Host != "drop.real.example" && !r.Shared {
					t.Errorf("an id of the last twenty explains %s", r.Dst.Host)
				}
			}
			if r.Dst.Host == "drop.real.example" || r.Dst.Host == "*.real.example" {
				direct += int(r.Times())
			}
		}
		if len(found) != len(ids) {
			t.Errorf("%d of %d ids are in the log", len(found), len(ids))
		}
		if direct != 20 {
			t.Errorf("%d of 20 denials are recorded under their domain", direct)
		}
	})
}

// TestAFloodOfDomainsIsCounted has a sandbox be denied more domains in an hour than are recorded.
func TestAFloodOfDomainsIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldOf(t, policy.New(opinion(deny)), audit.Options{}, two())
		const flood = denialsBurst + sightingsMost + 1000
		ids := map[string]bool{}
		for i := range flood {
			_, err := w.Open(t.Context(), from(1), ask(t, fmt.Sprintf("n.junk%d.test:443", i)))
			refusal := refusalOf(t, err, policy.RuleDeny)
			if first := !ids[refusal.ID.String()]; refusal.Summed != (i >= denialsBurst+sightingsMost) || !refusal.Summed && !first {
				t.Fatalf("refusal %d says that its id is shared: %v", i, refusal.Summed)
			}
			ids[refusal.ID.String()] = true
		}
		w.Shut()
		w.Records.Settle()
		w.config.Log.Close()
		records := w.records(t, record.KindOpen)
		last := records[len(records)-1]
		if times(records) != flood || last.Names == nil || last.Names.Domains != last.Count || last.Count < 900 {
			t.Errorf("%d denials are recorded of %d; the sum is %+v of %+v", times(records), flood, last, last.Names)
		}
	})
}
