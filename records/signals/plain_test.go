package signals_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
)

// TestPlainByHand measures the plain worlds: EGRESSD_SIGNALS_PLAIN logs of each, or of the one called
// EGRESSD_SIGNALS_WORLD; the rest as in measured.
func TestPlainByHand(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("EGRESSD_SIGNALS_PLAIN"))
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
				all, most := plainTrials(p, seed, 100_000, shapes)
				mu.Lock()
				defer mu.Unlock()
				highest[p.name] = append(highest[p.name], most)
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
}
