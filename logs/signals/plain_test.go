package signals_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/egressd/egressd/logs/signals"
)

// TestFindsTheThreeInPlainLogs plants the three in a held-out log of each plain world at once, each shape of the upload in two of
// the worlds, and wants each to be in the first three rows.
func TestFindsTheThreeInPlainLogs(t *testing.T) {
	if measuredPlain(t) {
		return
	}
	for i, p := range plains {
		w := newPlainLog(p, heldOutSeed(uint64(i)), 10_000)
		for _, x := range w.plant(w.scene(), shapes[i%len(shapes)]) {
			if x.place == 0 || x.place > 3 {
				t.Errorf("%s: %s has place %d: %s", p.name, x.kind, x.place, x.rows)
			}
		}
	}
}

// measuredPlain measures the plain worlds: EGRESSD_SIGNALS_PLAIN logs of each, or of the one called
// EGRESSD_SIGNALS_WORLD; the rest as in measured. It reports false where nobody asked for it.
func measuredPlain(t *testing.T) bool {
	n, err := strconv.Atoi(os.Getenv("EGRESSD_SIGNALS_PLAIN"))
	if err != nil {
		return false
	}
	from, _ := strconv.Atoi(os.Getenv("EGRESSD_SIGNALS_FROM"))
	var mu sync.Mutex
	var wg sync.WaitGroup
	byKind, byWorld, next := map[string][]int{}, map[string][]int{}, make(chan func())
	highest := map[string][]int{}
	for range 2 {
		wg.Go(func() {
			for do := range next {
				do()
			}
		})
	}
	for _, p := range plainNamed(os.Getenv("EGRESSD_SIGNALS_WORLD")) {
		for i := range n {
			seed := tunedSeed(uint64(from + i))
			if os.Getenv("EGRESSD_SIGNALS_HELDOUT") != "" {
				seed = heldOutSeed(uint64(from + i))
			}
			next <- func() {
				w := newPlainLog(p, seed, 100_000)
				s := w.scene()
				rows, all := s.ranked(nil), w.plant(s, shapes...)
				mu.Lock()
				defer mu.Unlock()
				highest[p.name] = append(highest[p.name], append(rows, signals.Suspect{})[0].Score)
				for i, x := range all {
					byKind[x.kind] = append(byKind[x.kind], x.place)
					kind := []string{"upload", "gist", "names"}[i%3]
					byWorld[kind+" in "+p.name] = append(byWorld[kind+" in "+p.name], x.place)
					byKind["all "+kind] = append(byKind["all "+kind], x.place)
					if os.Getenv("EGRESSD_SIGNALS_ROWS") != "" && (x.place == 0 || x.place > 3) {
						fmt.Println("SEED", seed, x.kind, x.place, x.rows)
					}
				}
			}
		}
	}
	close(next)
	wg.Wait()
	for _, all := range highest {
		slices.Sort(all)
	}
	t.Log("\nhighest of ordinary traffic:", highest, lines(byKind), "\n", lines(byWorld))
	return true
}
