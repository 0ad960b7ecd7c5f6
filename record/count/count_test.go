package count

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// counted returns what each decision counts for good.
func counted(all []Counted) []int64 {
	n := make([]int64, len(all))
	c := Counter[int]{Belongs: func(i int, _ int64) { n[i] = 0 }, Stays: func(i int, of int64) {
		if n[i] != of {
			panic(fmt.Sprintf("decision %d stays with %d, and was counted as %d", i, of, n[i]))
		}
	}}
	for i := range all {
		n[i], _ = c.Add(&all[i], func() int { return i })
	}
	c.Flush()
	return n
}

// at parses lines of a second, a verdict, a host, and a type or what a person is asked: "3 deny a.test A", "4 allow a.test",
// "5 ask a.test ?Q" for the question, "6 ask a.test ?q" for a refusal, "7 deny a.test A ask-rejected".
func at(lines ...string) (all []Counted) {
	for _, line := range lines {
		words := strings.Fields(line)
		var seconds float64
		if _, err := fmt.Sscan(words[0], &seconds); err != nil {
			panic(err)
		}
		d := Counted{Time: time.Unix(1_800_000_000, 0).Add(time.Duration(seconds * float64(time.Second))), Sandbox: "one", Action: words[1], Host: words[2], Times: 1}
		for _, word := range words[3:] {
			if id, found := strings.CutPrefix(word, "?"); found {
				d.Persons, d.Asks = []string{strings.ToUpper(id)}, id == strings.ToUpper(id)
			} else if strings.Contains(word, "-") {
				d.Class = word
			} else if _, err := fmt.Sscan(word, &d.Times); err != nil {
				d.Type = word
			}
		}
		all = append(all, d)
	}
	return all
}

// TestWhatIsOneRequest has a row for each rule.
func TestWhatIsOneRequest(t *testing.T) {
	for _, row := range []struct {
		says  string
		lines []string
		want  []int64
	}{
		{"a refused connection and its names", []string{"0 deny a A", "0 deny a AAAA", "0.1 deny a"}, []int64{0, 0, 1}},
		{"an allowed one", []string{"0 allow a A", "0 allow a AAAA", "0 allow a HTTPS", "0.1 allow a"}, []int64{0, 0, 0, 1}},
		{"two connections for one answer", []string{"0 allow a A", "1 deny a", "2 deny a"}, []int64{0, 1, 1}},
		{"a name that nothing followed", []string{"0 deny a A", "0 deny a AAAA", "0 deny a HTTPS"}, []int64{1, 0, 0}},
		{"the same, tried again", []string{"0 deny a A", "0 deny a AAAA", "9 deny a AAAA", "9 deny a A"}, []int64{1, 0, 1, 0}},
		{"a sum of repeats", []string{"0 deny a A", "1 deny a A 40", "1 deny a AAAA 60"}, []int64{1, 40, 19}},
		{"a connection that is too late", []string{"0 deny a A", "61 deny a"}, []int64{1, 1}},
		{"one that is not", []string{"0 deny a A", "60 deny a"}, []int64{0, 1}},
		{"a refused name, and an allowed connection", []string{"0 deny a A", "9 allow a"}, []int64{1, 1}},
		{"a name whose connection a person is asked about", []string{"0 deny a A ask-rejected", "1 ask a ?Q", "5 allow a ?q"}, []int64{0, 0, 1}},
		{"an allowed name, a refused connection", []string{"0 allow a A", "1 deny a"}, []int64{0, 1}},
		{"another name", []string{"0 allow a A", "1 deny b"}, []int64{1, 1}},
		{"an answer that comes late", []string{"0 allow a A", "1 allow a", "2 allow a AAAA"}, []int64{0, 1, 0}},
		{"a name that is asked for once more, and nothing follows", []string{"0 allow a A", "1 allow a", "9 allow a A"}, []int64{0, 1, 1}},
		{"other types", []string{"0 allow a TXT", "0 allow a TXT", "1 allow a"}, []int64{1, 1, 1}},
		{"a question that nobody has answered", []string{"0 ask a ?Q"}, []int64{1}},
		{"one whose request timed out", []string{"0 ask a ?Q", "60 ask a ?q"}, []int64{0, 1}},
		{"two that waited for one answer", []string{"0 ask a ?Q", "60 ask a ?q", "60 ask a ?q"}, []int64{0, 1, 1}},
		{"a refusal for want of an answer, and the request that passed", []string{"0 ask a ?Q", "0 ask a ?q", "60 ask a ?q", "90 allow a ?q"}, []int64{0, 0, 0, 1}},
		{"another question", []string{"0 ask a ?Q", "0 ask a ?q", "90 allow a ?r"}, []int64{0, 1, 1}},
	} {
		if got := counted(at(row.lines...)); !slices.Equal(got, row.want) {
			t.Errorf("%s: %v, want %v", row.says, got, row.want)
		}
	}
}

func TestATunnelThatOnlyCarriesDoesNotCount(t *testing.T) {
	for _, row := range []struct {
		outcome   string
		inspected bool
		up        int64
		want      bool
	}{
		{"closed", false, 0, false}, {"closed", true, 0, true}, {"cut", true, 0, true}, {"lifetime", true, 0, true},
		{"network-tls", true, 0, false}, {"client-refused-our-certificate", true, 0, false}, {"policy-error", true, 0, false}, {"audit-unavailable", true, 0, false},
		{"http", false, 0, true}, {"named", false, 0, true}, {"http", false, 7, false},
	} {
		if got := Carries(record.Outcome(row.outcome), row.inspected, row.up, 0); got != row.want {
			t.Errorf("%+v: %v", row, got)
		}
	}
}

// byDefinition counts as the rules are written, one name and one question after the other, without regard for time or memory.
func byDefinition(all []Counted) []int64 {
	n, done := make([]int64, len(all)), make([]bool, len(all))
	for i := range all {
		d := &all[i]
		switch {
		case !d.IsName():
			n[i] = d.Times
		case !done[i]:
			byName(all[i:], n[i:], done[i:])
		}
		for _, later := range all[i+1:] {
			names := len(d.Persons) > 0 && slices.Contains(later.Persons, d.Persons[0])
			if names && d.Action != "allow" && (later.Action == "allow" || d.Asks) {
				n[i] = 0
			}
		}
	}
	return n
}

// byName counts the questions that belong together with the first of all.
func byName(all []Counted, n []int64, done []bool) {
	q := all[0]
	refused := func(d Counted) bool { return d.Action != "allow" && d.Class != "ask-rejected" }
	within := func(d Counted) bool {
		return d.Sandbox == q.Sandbox && d.Host == q.Host && d.Time.Sub(q.Time) <= Follows
	}
	connected := slices.IndexFunc(all, func(d Counted) bool {
		return d.Type == "" && within(d) && (!refused(q) || d.Action != "allow")
	})
	most, asked := int64(0), map[string]int64{}
	for i, d := range all {
		if !d.IsName() || !within(d) || refused(d) != refused(q) || connected >= 0 && d.Time.Sub(all[connected].Time) > Late {
			continue
		}
		done[i] = true
		if asked[d.Type] += d.Times; connected < 0 && asked[d.Type] > most {
			n[i], most = asked[d.Type]-most, asked[d.Type]
		}
	}
}

// randomDecisions are of two sandboxes and few hosts, so that much belongs together.
func randomDecisions(random *rand.Rand, many int) (all []Counted) {
	pick := func(all ...string) string { return all[random.IntN(len(all))] }
	now := time.Unix(1_800_000_000, 0)
	for range many {
		now = now.Add([]time.Duration{0, time.Second, 2 * time.Second, 9 * time.Second, 41 * time.Second, time.Minute}[random.IntN(6)])
		d := Counted{Time: now, Sandbox: pick("one", "two"), Host: pick("a", "b"), Action: pick("allow", "deny"), Times: 1}
		switch random.IntN(8) {
		case 0, 1, 2, 3:
			d.Type, d.Class = pick("A", "AAAA", "HTTPS", "TXT"), pick("", "ask-rejected")
		case 4:
			d.Action, d.Persons = pick("ask", "ask", "deny", "allow"), []string{pick("Q", "R")}
			d.Asks = d.Action == "ask" && random.IntN(2) == 0
		}
		if d.Action == "deny" && random.IntN(4) == 0 {
			d.Times = 1 + random.Int64N(20)
		}
		all = append(all, d)
	}
	return all
}

// FuzzTheCounterIsTheDefinition compares the counter with the definition.
func FuzzTheCounterIsTheDefinition(f *testing.F) {
	for seed := range uint64(300) {
		f.Add(seed, uint8(seed%60))
	}
	f.Fuzz(func(t *testing.T, seed uint64, many uint8) {
		all := randomDecisions(rand.New(rand.NewPCG(seed, 7)), int(many))
		if got, want := counted(all), byDefinition(all); !slices.Equal(got, want) {
			for i, d := range all {
				t.Logf("%s %s %s %s %s ?%v ×%d: %d, want %d", d.Time.Format("05"), d.Sandbox, d.Action, d.Host, cmp.Or(d.Type, "connection")+d.Class, d.Persons, d.Times, got[i], want[i])
			}
			t.Fatal("the counter does not count as the rules say")
		}
	})
}

// TestWhatWaitsIsBounded asks for more names, and refuses more for want of an answer, than are remembered: each counts for good.
func TestWhatWaitsIsBounded(t *testing.T) {
	var all []Counted
	for i := range mostAskings + 10 {
		all = append(all, at(fmt.Sprintf("0 deny n%d A", i))...)
	}
	for i := range mostHeld + 10 {
		all = append(all, at(fmt.Sprintf("0 ask h%d ?q%d", i, i))...)
	}
	all = append(all, at("0 deny n0", "0 deny n10")...)
	got := counted(all)
	if got[0] != 1 || got[10] != 0 || got[mostAskings] != 1 || got[len(got)-3] != 1 {
		t.Errorf("the first name counts %d, one that waits still %d, another %d, the last refusal %d", got[0], got[10], got[mostAskings], got[len(got)-3])
	}
	c := Counter[int]{Belongs: func(int, int64) {}}
	for i := range all {
		c.Add(&all[i], func() int { return i })
	}
	if len(c.queue) > mostAskings || len(c.askings) > mostAskings || c.heldNow > mostHeld {
		t.Errorf("%d names and %d refusals wait", len(c.queue), c.heldNow)
	}
}
