package fair

import "testing"

func TestAHolderTakesNoMoreThanAreFree(t *testing.T) {
	p := Pool[string]{Most: 12}
	take := func(h string, want int) {
		t.Helper()
		for range 2 * p.Most {
			p.Acquire(h)
		}
		if n, _ := p.Held(h); n != want {
			t.Errorf("%s holds %d, want %d", h, n, want)
		}
	}
	take("greedy", 6)
	take("second", 3)
	take("third", 2)
	for range 6 {
		p.Release("greedy")
	}
	take("third", 5)
	if p.Acquire("fourth"); p.held["greedy"] != 0 {
		t.Errorf("it keeps %v", p.held)
	}
	p = Pool[string]{Most: 12, MostOfOne: 2}
	take("greedy", 2)
	p = Pool[string]{}
	take("nobody", 0)
}
