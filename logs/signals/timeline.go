package signals

// A timeline counts flows by their time, in slots of one length that doubles as the log grows. The zero
// value is empty and small, and stays small while there are few.
type timeline struct {
	early []int64 // seconds, while there are few
	base  int64   // the first slot, in lengths since 1970
	scale uint8   // the length is 1<<scale seconds
	of    *[slots]uint32
}

const slots = 64

func (t *timeline) add(at int64) {
	if t.of == nil && len(t.early) < few {
		t.early = append(t.early, at)
		return
	}
	if t.of == nil {
		t.of, t.base = new([slots]uint32), t.early[0]
		for _, e := range t.early {
			t.put(e, 1)
		}
		t.early = nil
	}
	t.put(at, 1)
}

func (t *timeline) put(at int64, n uint32) {
	for {
		switch i := at>>t.scale - t.base; {
		case i >= slots || i < 0 && -i > t.free():
			t.coarsen()
		case i < 0:
			copy(t.of[-i:], t.of[:])
			clear(t.of[:-i])
			t.base += i
		default:
			t.of[i] += n
			return
		}
	}
}

// free is how many slots at the end are not in use.
func (t *timeline) free() (n int64) {
	for i := slots - 1; i >= 0 && t.of[i] == 0; i-- {
		n++
	}
	return n
}

// coarsen puts two slots into one.
func (t *timeline) coarsen() {
	var of [slots]uint32
	base := t.base >> 1
	for i, n := range t.of {
		if n > 0 {
			of[(t.base+int64(i))>>1-base] += n
		}
	}
	*t.of, t.base, t.scale = of, base, t.scale+1
}

func (t *timeline) merge(o *timeline) {
	for _, e := range o.early {
		t.add(e)
	}
	if o.of == nil {
		return
	}
	for i, n := range o.of {
		if n > 0 {
			at := (o.base + int64(i)) << o.scale
			for ; n > 0 && t.of == nil; n-- {
				t.add(at)
			}
			if n > 0 {
				t.put(at, n)
			}
		}
	}
}

// in is t in the slots of o, which begins no later and is no finer.
func (t *timeline) in(o *timeline) (of [slots]float64) {
	put := func(at int64, n float64) { of[min(slots-1, max(0, at>>o.scale-o.base))] += n }
	for _, e := range t.early {
		put(e, 1)
	}
	if t.of != nil {
		for i, n := range t.of {
			put((t.base+int64(i))<<t.scale, float64(n))
		}
	}
	return of
}
