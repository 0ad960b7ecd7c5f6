package fair

import "testing"

func TestARoomIsSharedOut(t *testing.T) {
	r := MemoryQuota{most: 100}
	a, b, other := r.Reserve("a", "a"), r.Reserve("a", "a"), r.Reserve("b", "b")
	if n := a.GrowFair(10, 1); n != 10 {
		t.Errorf("of 100 and at most 10: %d", n)
	}
	if n := b.GrowFair(50, 1); n != 11 {
		t.Errorf("an eighth of 90: %d", n)
	}
	if c := r.Reserve("a", "a"); !c.Grow(79) || c.Grow(1) {
		t.Error("of 79 that were left, 80 could be taken, or not 79")
	}
	if n := r.Reserve("a", "a").GrowFair(50, 5); n != 5 {
		t.Errorf("the least, where there is nothing: %d", n)
	}
	if !other.Grow(100) {
		t.Error("what one sandbox takes, another has not")
	}
	a.Retain()
	a.Release()
	if n := r.held["a"]; n != 105 {
		t.Errorf("%d are held with one user left", n)
	}
	a.Release()
	b.Release()
	if n := r.held["a"]; n != 84 {
		t.Errorf("%d are held, want 84", n)
	}
	other.Clear()
	if !other.Grow(1) {
		t.Error("what was freed cannot be taken again")
	}
	if other.Release(); other.Grow(1) {
		t.Error("a lease that has ended takes more")
	}
	if a.Retain() || a.users != 0 {
		t.Error("a lease that has ended is shared")
	}
	if _, known := r.held["b"]; known {
		t.Error("a sandbox that holds nothing is not forgotten")
	}
}
