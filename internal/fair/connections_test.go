package fair

import (
	"fmt"
	"slices"
	"testing"
)

// takeAll takes for name what it can have.
func (p *Connections[S]) takeAll(name string) (all []*Admission) {
	var none S
	for {
		at := new(Admission)
		if !p.Acquire(at, name, none, nil) {
			return all
		}
		all = append(all, at)
	}
}

func TestNobodyHasMorePlacesThanAreFree(t *testing.T) {
	p := &Connections[int]{Most: 12}
	var all []*Admission
	for _, row := range []struct {
		name string
		gets int
	}{{"a", 6}, {"b", 3}, {"c", 2}, {"d", 1}, {"e", 0}} {
		got := p.takeAll(row.name)
		if len(got) != row.gets {
			t.Errorf("%s got %d of 12 places, want %d", row.name, len(got), row.gets)
		}
		all = append(all, got...)
	}
	for _, at := range all {
		p.Release(at)
		p.Release(at) // once is enough
	}
	if got := len(p.takeAll("e")); got != 6 {
		t.Errorf("%d places were there again, want 6", got)
	}
}

func TestSharesOfNobodyAreForgotten(t *testing.T) {
	p := &Connections[int]{Most: 12}
	kept := p.takeAll("kept")
	for i := range 1000 {
		at := new(Admission)
		p.Acquire(at, fmt.Sprint(i), 0, nil)
		p.Release(at)
	}
	if len(p.holders) > 2*sweptMost {
		t.Errorf("%d shares are left", len(p.holders))
	}
	if s := p.holderLocked("kept", 0); s.held != len(kept) {
		t.Errorf("who has %d places is said to have %d", len(kept), s.held)
	}
}

// TestATemplateIsOneHolder has a template take connections for as many ids as get one, beside two sandboxes that are none
// of it.
func TestATemplateIsOneHolder(t *testing.T) {
	p := &Connections[int]{Most: 64}
	take := func(holder, name string) (n int) {
		for {
			at := new(Admission)
			if !p.Acquire(at, "", 0, nil) {
				t.Fatal("no connection can come in any more")
			}
			if !p.Assign(at, holder, name) {
				p.Release(at)
				return n
			}
			n++
		}
	}
	got := []int{take("t-{id}", "t-1"), take("t-{id}", "t-2"), take("t-{id}", "t-3")}
	all := got[0] + got[1] + got[2]
	for i := range 1000 {
		all += take("t-{id}", fmt.Sprint("t-other-", i))
	}
	plain, second := take("plain", "plain"), take("u-{id}", "u-1")
	if !slices.Equal(got, []int{16, 8, 4}) || all != 32 || plain != 16 || second == 0 {
		t.Errorf("ids got %v, the template %d, a plain sandbox %d, an id of another template %d", got, all, plain, second)
	}
}
