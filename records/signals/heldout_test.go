package signals_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"sync"
	"testing"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/records"
	"github.com/egressd/egressd/records/signals"
)

// rank is the place of p among the rows of what a and b say together, both being in the
// order of their times; 0 where there is none.
func rank(a, b []*egress.Record, p planted) (place, rows int, top []signals.Attempt) {
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
		if place == 0 && p.is(row.Sandbox, row.Program, row.Destination) {
			place = i + 1
		}
	}
	return place, len(all), all[:min(len(all), 8)]
}

func TestMeasureHeldOut(t *testing.T) {
	seeds, _ := strconv.Atoi(os.Getenv("EGRESSD_SIGNALS_SEEDS"))
	type key struct {
		kind int
		l    level
	}
	places := map[key][]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := make(chan uint64)
	for range 2 {
		wg.Go(func() {
			for seed := range next {
				tr := newTrace(seed)
				tr.fourth = os.Getenv("EGRESSD_SIGNALS_WORLD") == "4"
				w := tr.team()
				tr.ordinary(w, 100_000)
				base := tr.finish()
				for kind, x := range exfiltrations {
					if k := os.Getenv("EGRESSD_SIGNALS_KIND"); k != "" && !regexp.MustCompile(k).MatchString(x.name) {
						continue
					}
					for _, l := range levels {
						p := x.plant(tr, w, l)
						place, rows, top := rank(base, tr.finish(), p)
						mu.Lock()
						places[key{kind, l}] = append(places[key{kind, l}], place)
						if os.Getenv("EGRESSD_SIGNALS_ROWS") != "" {
							fmt.Printf("%d %s %s: %+v place %d of %d\n", seed, x.name, l, p, place, rows)
							for _, a := range top {
								fmt.Printf("   %+v\n", a)
							}
						}
						mu.Unlock()
					}
				}
			}
		})
	}
	for seed := range uint64(seeds) {
		next <- seed + 1
	}
	close(next)
	wg.Wait()
	for kind, x := range exfiltrations {
		for _, l := range levels {
			first, three, ten, none := 0, 0, 0, 0
			for _, p := range places[key{kind, l}] {
				switch {
				case p == 0:
					none++
				case p == 1:
					first, three, ten = first+1, three+1, ten+1
				case p <= 3:
					three, ten = three+1, ten+1
				case p <= 10:
					ten++
				}
			}
			fmt.Printf("%-36s %-6s first %3d  three %3d  ten %3d  absent %3d\n", x.name, l, first, three, ten, none)
		}
	}
}
