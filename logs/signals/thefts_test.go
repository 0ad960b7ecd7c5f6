package signals_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/egressd/egressd/logs/signals"
)

// The first row of four ordinary days has less than mostOrdinary in half of the logs. A deployment that sends from some day on, and not
// before, looks like a theft, and has less than mostNew.
const mostOrdinary, mostNew = 15, 45

// TestFindsTheftsOfManyKinds plants each theft alone in four days of a company, and all of them together, in logs of 30,000 records
// that were held out. EGRESSD_SIGNALS_THEFTS=6 is that many logs, behind the EGRESSD_SIGNALS_FROM'th; with EGRESSD_SIGNALS_TUNED they
// are those that may be looked at, and with EGRESSD_SIGNALS_ROWS it prints the rows.
func TestFindsTheftsOfManyKinds(t *testing.T) {
	logs, _ := strconv.Atoi(os.Getenv("EGRESSD_SIGNALS_THEFTS"))
	logs = max(2, logs)
	from, _ := strconv.Atoi(os.Getenv("EGRESSD_SIGNALS_FROM"))
	seedOf := heldOutSeed
	if os.Getenv("EGRESSD_SIGNALS_TUNED") != "" {
		seedOf = tunedSeed
	}
	alone, together := map[string][]int{}, map[string][]int{}
	var highest []int
	for n := range uint64(logs) {
		seed := seedOf(uint64(from) + n)
		s, _ := scene7(seed, 30_000)
		rows := append(s.ranked(nil), signals.Suspect{})
		highest = append(highest, rows[0].Score)
		if os.Getenv("EGRESSD_SIGNALS_ROWS") != "" {
			fmt.Println("LOG", n, firstRows(rows[:min(len(rows)-1, 6)], planted{sandbox: "-"}, 6))
		}
		var all []planted
		var every []emitted
		for i, x := range thefts7 {
			s, w := scene7(seed, 30_000)
			w.Rand = newTrace(seed*100 + uint64(i)).Rand
			p := x.plant(w)
			more := decided(w.finish())
			rows := s.ranked(more)
			place := placeOf(rows, p)
			alone[x.name] = append(alone[x.name], place)
			all, every = append(all, p), append(every, more...)
			if os.Getenv("EGRESSD_SIGNALS_ROWS") != "" && place != 1 {
				fmt.Println("LOG", n, x.name, place, firstRows(rows, p, 3))
			}
		}
		slices.SortStableFunc(every, func(a, b emitted) int { return a.at.Compare(b.at) })
		rows = s.ranked(every)
		for i, x := range thefts7 {
			together[x.name] = append(together[x.name], placeOf(rows, all[i], all...))
		}
	}
	first, three := 0, 0
	for _, x := range thefts7 {
		t.Logf("%-34s alone %v mean %.1f; together %v", x.name, alone[x.name], mean7(alone[x.name]), together[x.name])
		first += within(alone[x.name], 1)
		three += within(alone[x.name], 3)
	}
	t.Logf("alone first %d, in the first three %d of %d; highest without a theft %v", first, three, logs*len(thefts7), highest)
	if 10*three < 9*logs*len(thefts7) {
		t.Errorf("%d of %d are in the first three", three, logs*len(thefts7))
	}
	if slices.Sort(highest); highest[(logs-1)/2] >= mostOrdinary || highest[logs-1] >= mostNew {
		t.Errorf("ordinary rows reach %v", highest)
	}
}

// BenchmarkMillion ranks a million records: ten times the same four days, one behind the other.
func BenchmarkMillion(b *testing.B) {
	s, _ := scene7(tunedSeed(0), 100_000)
	for b.Loop() {
		var f signals.Finder
		for range 10 {
			for i := range s.decisions {
				r := s.decisions[i].r
				r.Time = r.Time.Add(4 * 24 * time.Hour)
				f.Add(r)
			}
		}
		f.Suspects()
	}
	b.ReportMetric(float64(10*len(s.decisions)), "decisions")
}
