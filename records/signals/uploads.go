package signals

import (
	"fmt"
	"strings"
	"time"
)

// What an upload has to be to count, and how much.
const (
	few          = 12               // fewer say nothing about how regular they are
	volumeFrom   = 128 << 10        // bytes that a program may send anywhere
	volumeTo     = 16 << 20         // bytes from which more is not worse
	volumeScore  = 30               //
	alikeSizes   = 0.3              // variation: pieces of a file; prompts and commits vary by more than 1
	alikeGaps    = 0.7              // variation: a timer; what people and agents cause varies by 1 and more
	longTime     = 30 * time.Minute // in which it went on
	rareProgram  = 0.02             // part of all flows
	ordinaryMost = 35               // for what is only large: there are interfaces that one sends much to
)

// sends is about flows that mostly send. That there are such flows is ordinary: a
// model is sent the whole conversation again and again. It is not where the rest of the
// traffic with the same destination comes down, where the program does hardly anything
// else, or where the destination is a new one.
func (f *Finder) sends(key siteKey, s *site) Signal {
	u, d := &s.uploads, &s.downloads
	if u.n == 0 || u.up < volumeFrom {
		return Signal{}
	}
	score := scaled(float64(u.up), volumeFrom, volumeTo, volumeScore)
	notes := []string{fmt.Sprintf("%s up and %s down in %d flows that mostly send", size(u.up), size(u.down), u.n)}
	note := func(points int, format string, a ...any) {
		score += points
		notes = append(notes, fmt.Sprintf(format, a...))
	}
	odd := 0
	others := f.elsewhere(key)
	from := d.down + others.down
	switch all := d.n + others.n; {
	case all >= few && from > 4*(d.up+others.up) && u.n < all*2:
		odd += 20
		note(20, "others with this destination mostly fetch (%s)", size(from))
	case f.isRare(key):
		odd += 15
		note(15, "the program does little else in this sandbox")
	}
	if f.isNew(s) {
		odd += 10
		note(10, "the destination was not used before")
	}
	if u.n >= few {
		if v := u.sizes.variation(); v < alikeSizes {
			note(15, "in pieces of one size (±%.0f%%)", 100*v)
		}
		if v := u.gaps.variation(); v < alikeGaps {
			note(10, "about every %s", time.Duration(u.gaps.mean*float64(time.Second)).Round(time.Second))
		}
		if long := u.last.Sub(u.first); long >= longTime {
			note(10, "for %s", long.Round(time.Minute))
		}
	}
	if s.longest > max(volumeFrom, u.up/2) {
		note(20, "%s of it in one flow of minutes", size(s.longest))
	}
	if odd == 0 || f.isHabit(s) {
		score = min(score, ordinaryMost)
	}
	return Signal{"upload", min(score, 95), strings.Join(notes, "; ")}
}

// elsewhere is what the other programs of a sandbox did with a destination.
func (f *Finder) elsewhere(key siteKey) (t traffic) {
	for other := range f.programs {
		if other.sandbox != key.sandbox || other.program == key.program {
			continue
		}
		if s := f.sites[siteKey{key.sandbox, other.program, key.destination}]; s != nil {
			t.n += s.downloads.n
			t.up += s.downloads.up
			t.down += s.downloads.down
		}
	}
	return t
}

// isRare reports whether a program is known, does hardly anything, and that at one
// place.
func (f *Finder) isRare(key siteKey) bool {
	p := f.programs[programKey{key.sandbox, key.program}]
	s := f.sites[key]
	if key.program == "" || p == nil || s == nil || f.flows < 1000 {
		return false
	}
	return float64(p.flows) < rareProgram*float64(f.flows) && s.allowed*2 > p.flows
}

// isHabit reports whether a program sends to a destination all through the log, now
// more and now less, as people push commits and pipelines what they have built. What
// counts is the place among all flows: nobody works at night.
func (f *Finder) isHabit(s *site) bool {
	u := &s.uploads
	early, late := u.since < f.flows/5, f.flows-u.till < f.flows/5
	even := u.sizes.variation() < alikeSizes || u.gaps.variation() < alikeGaps
	return u.n >= few && early && late && !even && s.longest <= u.up/2
}

// isNew reports whether a destination came up when the log had gone on for long.
func (f *Finder) isNew(s *site) bool {
	return f.flows >= 1000 && s.since > f.flows/10
}

// beats is about what comes by the clock. It is ordinary for what polls, so it counts
// for little by itself.
func (f *Finder) beats(key siteKey, s *site) Signal {
	t := s.downloads
	t.merge(&s.uploads)
	if s.downloads.gaps.n > s.uploads.gaps.n {
		t.gaps = s.downloads.gaps
	} else {
		t.gaps = s.uploads.gaps
	}
	v := t.gaps.variation()
	if t.gaps.n < 3*few || v > 0.2 || t.gaps.mean < 5 {
		return Signal{}
	}
	score := 5
	if f.isNew(s) {
		score += 10
	}
	if f.isRare(key) {
		score += 10
	}
	return Signal{"beacon", score, fmt.Sprintf("%d times, every %s (±%.0f%%)", t.gaps.n+1, time.Duration(t.gaps.mean*float64(time.Second)).Round(time.Second), 100*v)}
}

// size is a number of bytes for a person.
func size(n int64) string {
	for _, unit := range []struct {
		name string
		of   int64
	}{{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}} {
		if n >= unit.of {
			return fmt.Sprintf("%.3g %s", float64(n)/float64(unit.of), unit.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}
