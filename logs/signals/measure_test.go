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

	"github.com/egressd/egressd/logs/signals"
)

// A trial is one exfiltration in one world, and where it was found.
type trial struct {
	kind, how string
	planted   planted
	level     level
	volume    string // how much, where that was said
	place     int    // 0 for nowhere
	rows      string // the first, for a person
}

// heading is that of the line of a table in which x counts.
func (x trial) heading() string { return fmt.Sprintf("%-36s %-6s %-6s", x.kind, x.level, x.volume) }

// trials plants the exfiltrations of the levels in s: the twelve kinds of a level at once, and what is
// planted in volumes, of a level and a volume at once. Of each its place is that among the rows
// which tell of no other.
func (s *scene) trials(of ...level) (all []trial) {
	for _, l := range of {
		if s.team != nil {
			var together []trial
			for _, x := range exfiltrations {
				together = append(together, trial{kind: x.name, level: l, planted: x.plant(s.trace, s.team, l)})
			}
			all = append(all, s.placed(together)...)
		}
		for _, v := range volumes {
			var together []trial
			for _, x := range leaks {
				if p, how, ok := x.plant(s, l, v); ok {
					together = append(together, trial{kind: x.name, level: l, planted: p, volume: v.String(), how: how + tellable(p, how)})
				}
			}
			all = append(all, s.placed(together)...)
		}
	}
	return all
}

// placed finds what was planted.
func (s *scene) placed(all []trial) []trial {
	var others []planted
	for _, x := range all {
		others = append(others, x.planted)
	}
	rows := s.ranked(decided(s.finish()))
	for i, x := range all {
		all[i].place = placeOf(rows, x.planted, others...)
		all[i].rows = fmt.Sprintf("%+v %s", x.planted, x.how) + firstRows(rows, x.planted, 5)
	}
	return all
}

// tellable says where nothing but size and time tells p from what is ordinary: where the program is not
// known, or is the one that always sends there.
func tellable(p planted, how string) string {
	if p.program == "" && (how == "at the model" || how == "at the code host") {
		return ", by who is not known"
	}
	return ""
}

// firstRows are the first n for a person, and what is said of p.
func firstRows(rows []signals.Suspect, p planted, n int) (text string) {
	for i, a := range rows {
		own := p.isIn(a)
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

// measured measures by hand what the manual says, in EGRESSD_SIGNALS_SEEDS logs behind the
// EGRESSD_SIGNALS_FROM'th of the world EGRESSD_SIGNALS_WORLD (a name of scenes; all without it). They are those
// that may be looked at, or with EGRESSD_SIGNALS_HELDOUT the others. EGRESSD_SIGNALS_ROWS prints what is not
// found. It reports false where nobody asked for it.
func measured(t *testing.T) bool {
	n, err := strconv.Atoi(os.Getenv("EGRESSD_SIGNALS_SEEDS"))
	if err != nil {
		return false
	}
	from, _ := strconv.Atoi(os.Getenv("EGRESSD_SIGNALS_FROM"))
	for _, s := range scenes {
		if name := os.Getenv("EGRESSD_SIGNALS_WORLD"); name == "" || name == s.name {
			t.Log(s.name, measure(s.make, from, n))
		}
	}
	return true
}

// measure says how often each exfiltration is among the first row, three and ten, how often
// not at all, and what its place is where it is not among the first three.
func measure(world func(uint64, int) *scene, from, seeds int) string {
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
				s := world(seed, 100_000)
				rows, all := s.ranked(nil), s.trials(levels...)
				mu.Lock()
				highest = append(highest, rows[0].Score)
				if os.Getenv("EGRESSD_SIGNALS_ROWS") != "" {
					fmt.Println("SEED", seed, "ordinary:", firstRows(rows, planted{sandbox: "-"}, 8))
				}
				for _, x := range all {
					places[x.heading()] = append(places[x.heading()], x.place)
					if x.how != "" && x.volume != "100 kB" {
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
