package signals_test

import "testing"

// TestFindsTheThree plants the three exfiltrations that everybody names at once, a megabyte by each, in the first
// held-out logs of every world, and wants each to be in the first three rows, what is told of the
// other two left out. They are by programs of the thief's own, or, where programs are not known, go to where
// nothing is sent. What is harder is found less often, and not at all where it looks like the ordinary: the
// manual says how often.
func TestFindsTheThree(t *testing.T) {
	if measured(t) {
		return
	}
	for _, world := range scenes {
		for n := range uint64(2) {
			s := world.make(heldOutSeed(n), 30_000)
			var all []planted
			for _, x := range leaks {
				before := len(s.out)
				p, how, _ := x.plant(s, easy, 1e6)
				for tellable(p, how) != "" {
					s.out = s.out[:before]
					p, how, _ = x.plant(s, easy, 1e6)
				}
				all = append(all, p)
			}
			rows := s.ranked(decided(s.finish()))
			for i, p := range all {
				if place := placeOf(rows, p, all...); place == 0 || place > 3 {
					t.Errorf("%s %d: %s has place %d: %+v%s", world.name, n, leaks[i].name, place, p, firstRows(rows, p, 4))
				}
			}
		}
	}
}
