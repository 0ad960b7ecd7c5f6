package signals_test

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/egressd/egressd/records/signals"
)

// A trial is one exfiltration in one world, and where it was found.
type trial struct {
	kind, how string
	level     level
	volume    string // how much, where that was said
	place     int    // 0 for nowhere
	rows      string // the first, for a person
}

// heading is that of the line of a table in which x counts.
func (x trial) heading() string { return fmt.Sprintf("%-36s %-6s %-6s", x.kind, x.level, x.volume) }

// trials plants every exfiltration of the levels, one at a time, in s.
func (s *scene) trials(of ...level) (all []trial) {
	note := func(x trial, p planted) {
		rows := s.ranked(decided(s.finish()))
		x.place = placeOf(rows, p)
		x.rows = fmt.Sprintf("%+v %s", p, x.how) + firstRows(rows, p, 5)
		all = append(all, x)
	}
	if s.team != nil {
		for _, x := range exfiltrations {
			for _, l := range of {
				p := x.plant(s.trace, s.team, l)
				note(trial{kind: x.name, level: l}, p)
			}
		}
	}
	for _, x := range leaks {
		for _, l := range of {
			for _, v := range volumes {
				if p, how, ok := x.plant(s, l, v); ok {
					note(trial{kind: x.name, level: l, volume: v.String(), how: how}, p)
				}
			}
		}
	}
	return all
}

// firstRows are the first n for a person, and what is said of p.
func firstRows(rows []signals.Attempt, p planted, n int) (text string) {
	for i, a := range rows {
		own := p.is(a.Sandbox, a.Program, a.Destination)
		if i < n || own {
			text += fmt.Sprintf("\n%4d. %3d %s/%s %s", i+1, a.Score, a.Sandbox, a.Program, a.Destination)
			for _, s := range a.Signals {
				text += fmt.Sprintf("\n          %s %d: %s", s.What, s.Score, s.Evidence)
			}
		}
		if own {
			text += " <-"
			n = 0
		}
	}
	return text
}

// TestMeasure measures by hand what the manual says, in EGRESSD_SIGNALS_SEEDS logs behind the
// EGRESSD_SIGNALS_FROM'th of the world EGRESSD_SIGNALS_WORLD (a name of scenes). They are those that may
// be looked at, or with EGRESSD_SIGNALS_HELDOUT the others. EGRESSD_SIGNALS_ROWS prints what is not found.
// Without the first it looks whether there is anything to measure.
func TestMeasure(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("EGRESSD_SIGNALS_SEEDS"))
	from, _ := strconv.Atoi(os.Getenv("EGRESSD_SIGNALS_FROM"))
	for _, s := range scenes {
		if name := os.Getenv("EGRESSD_SIGNALS_WORLD"); n > 0 && (name == "" || name == s.name) {
			t.Log(s.name, measure(s.make, from, n))
		}
	}
}

// measure says how often each exfiltration is among the first row, three and ten, how often
// not at all, and what its place is where it is not among the first three.
func measure(world func(uint64) *scene, from, seeds int) string {
	var mu sync.Mutex
	var wg sync.WaitGroup
	places, hows, next := map[string][]int{}, map[string][]int{}, make(chan int)
	var highest []int
	for range 2 {
		wg.Go(func() {
			for i := range next {
				seed := tunedSeed(uint64(from + i))
				if os.Getenv("EGRESSD_SIGNALS_HELDOUT") != "" {
					seed = heldOutSeed(uint64(from + i))
				}
				s := world(seed)
				rows, all := s.ranked(nil), s.trials(levels...)
				mu.Lock()
				highest = append(highest, rows[0].Score)
				if os.Getenv("EGRESSD_SIGNALS_ROWS") != "" {
					fmt.Println("SEED", seed, "ordinary:", firstRows(rows, planted{}, 8))
				}
				for _, x := range all {
					places[x.heading()] = append(places[x.heading()], x.place)
					if x.how != "" {
						key := fmt.Sprintf("   %-30s %s", x.how, x.level)
						hows[key] = append(hows[key], x.place)
					}
					if os.Getenv("EGRESSD_SIGNALS_ROWS") != "" && (x.place == 0 || x.place > 3) {
						fmt.Println("SEED", seed, x.heading(), x.place, x.rows)
					}
				}
				mu.Unlock()
			}
		})
	}
	for i := range seeds {
		next <- i
	}
	close(next)
	wg.Wait()
	slices.Sort(highest)
	return fmt.Sprintf("\nhighest of ordinary traffic: %v", highest) + lines(places) + "\n" + lines(hows)
}

func lines(places map[string][]int) string {
	var table strings.Builder
	for _, key := range slices.SortedFunc(maps.Keys(places), cmp.Compare[string]) {
		all := places[key]
		var late []int
		for _, p := range all {
			if p > 3 {
				late = append(late, p)
			}
		}
		slices.Sort(late)
		median := 0
		if len(late) > 0 {
			median = late[len(late)/2]
		}
		percent := func(n int) int { return (100*n + len(all)/2) / len(all) }
		fmt.Fprintf(&table, "\n%-52s n %3d  first %3d%%  three %3d%%  ten %3d%%  absent %3d%%  median behind %d", key, len(all),
			percent(within(all, 1)), percent(within(all, 3)), percent(within(all, 10)), percent(len(all)-within(all, 1e6)), median)
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
