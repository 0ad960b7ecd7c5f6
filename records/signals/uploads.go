package signals

import (
	"fmt"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
)

// What an upload has to be to count, and how much.
const (
	few           = 12               // fewer say nothing about how regular they are
	volumeFrom    = 128 << 10        // bytes that a program may send anywhere
	volumeTo      = 16 << 20         // bytes from which more is hardly worse
	volumeScore   = 30               //
	hugeVolume    = 1 << 30          // from which it is not at all, and
	hugeScore     = 10               // what that adds
	alikeSizes    = 0.3              // variation: pieces of a file; prompts and commits vary by more than 1
	alikeGaps     = 0.7              // variation: a timer; what people and agents cause varies by 1 and more
	alikeShare    = 0.6              // of the gaps that are alike
	longTime      = 30 * time.Minute // in which it went on
	rareProgram   = 0.02             // part of all flows
	oneWay        = 8                // times as much up as down: conversations are less
	occasionsMost = 4                // from which something is a habit
	habitMost     = 25               // for what goes on all through the log
	ordinaryMost  = 35               // for what is only large: there are interfaces that one sends much to
)

// reasons are what counts for and against a signal, each in words.
type reasons struct {
	score int
	odd   bool // something says more than that there was much of it
	words []string
}

func (r *reasons) note(points int, format string, a ...any) {
	r.score += points
	r.words = append(r.words, fmt.Sprintf(format, a...))
}

func (r *reasons) oddity(points int, format string, a ...any) {
	r.odd = true
	r.note(points, format, a...)
}

func (r *reasons) signal(what string, most int) Signal {
	return Signal{what, min(r.score, most), strings.Join(r.words, "; ")}
}

// sends is about flows that mostly send. That there are such flows is ordinary: a
// model is sent the whole conversation again and again. It is not where the rest of the
// traffic with the same destination comes down, where the program does hardly anything
// else, where the destination is a new one, where everybody else rests, or where another way was just refused.
func (f *Finder) sends(key siteKey, s *site) Signal {
	u := &s.uploads
	if u.n == 0 || u.up < volumeFrom {
		return Signal{}
	}
	var r reasons
	r.note(scaled(float64(u.up), volumeFrom, volumeTo, volumeScore)+scaled(float64(u.up), volumeTo, hugeVolume, hugeScore),
		"%s up and %s down in %d flows that mostly send", size(u.up), size(u.down), u.n)
	f.oddities(&r, key, s)
	s.pace(&r)
	most := 95
	switch {
	case f.isHabit(key, s):
		most = habitMost
	case !r.odd:
		most = ordinaryMost
	}
	return r.signal("upload", most)
}

// oddities are those of who sends, where to and when.
func (f *Finder) oddities(r *reasons, key siteKey, s *site) {
	switch {
	case f.isFetchedFrom(key, s):
		r.oddity(20, "others with this destination mostly fetch (%s)", size(s.downloads.down+f.elsewhere(key, s).down))
	case f.isRare(key):
		r.oddity(15, "the program does little else in this sandbox")
	}
	if f.isNew(s) {
		r.oddity(10, "the destination was not used before")
	}
	if policy.HandedOut(key.destination) && !isStore(key.destination) {
		r.note(10, "a name that anybody can have")
	}
	if s.when.idleShare(f.work[key.sandbox]) > 0.5 {
		r.oddity(15, "at hours in which the sandbox does little else")
	}
	if s.hurried > s.uploads.up/2 {
		r.oddity(10, "%s of it soon after something else was denied", size(s.hurried))
	}
}

// pace is how the uploads of a site follow each other.
func (s *site) pace(r *reasons) {
	u := &s.uploads
	if s.heads > u.up/2 {
		r.note(10, "in the heads of requests")
	}
	if u.n >= few {
		if v := u.sizes.variation(); v < alikeSizes {
			r.note(15, "in pieces of one size (±%.0f%%)", 100*v)
		}
		if v := u.gaps.variation(); v < alikeGaps {
			r.note(10, "about every %s", time.Duration(u.gaps.mean*float64(time.Second)).Round(time.Second))
		}
		if long := u.last.Sub(u.first); long >= longTime {
			r.note(10, "for %s", long.Round(time.Minute))
		}
	}
	if s.longest > max(volumeFrom, u.up/2) && u.up > oneWay*u.down {
		r.note(20, "%s of it in one flow of minutes", size(s.longest))
	}
}

// A total is what all programs of all sandboxes did with a destination.
type total struct {
	n, up, down int64
	sender      string // a sandbox that sends to it, and
	others      bool   // whether there are others
}

// sum adds up what every destination is used for, as it is now.
func (f *Finder) sum() {
	f.totals = make(map[string]total, len(f.sites))
	for key, s := range f.sites {
		t := f.totals[key.destination]
		t.n += s.downloads.n + s.uploads.n
		t.up += s.downloads.up + s.uploads.up
		t.down += s.downloads.down + s.uploads.down
		if s.uploads.up >= volumeFrom {
			t.others = t.others || t.sender != "" && t.sender != key.sandbox
			t.sender = key.sandbox
		}
		f.totals[key.destination] = t
	}
}

// elsewhere is what others did with a destination: the other programs of the sandbox, and those
// of other sandboxes.
func (f *Finder) elsewhere(key siteKey, s *site) total {
	t := f.totals[key.destination]
	t.n -= s.downloads.n + s.uploads.n
	t.up -= s.downloads.up + s.uploads.up
	t.down -= s.downloads.down + s.uploads.down
	return t
}

// isShared reports whether other sandboxes send to a destination as well.
func (f *Finder) isShared(key siteKey) bool {
	t := f.totals[key.destination]
	return t.others || t.sender != "" && t.sender != key.sandbox
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
// more and now less, and never most of it within a quarter of a day, as people push commits and pipelines what they have built. What
// counts is the place among all flows: nobody works at night.
func (f *Finder) isHabit(key siteKey, s *site) bool {
	u := &s.uploads
	if s.longest > u.up/2 || u.greatest > u.up/2 || u.gaps.variation() < alikeGaps {
		return false
	}
	early, late := u.since < f.flows/5, f.flows-u.till < f.flows/5
	if u.n >= few && early && late && u.sizes.variation() >= alikeSizes {
		return true
	}
	// Parts of what is uploaded are of one size, too, and so are not told by that.
	often := u.occasions >= occasionsMost && u.till-u.since > f.flows/2
	return often && (!f.isFetchedFrom(key, s) || s.downloads.n > u.n)
}

// isFetchedFrom reports whether the rest of the traffic with a destination comes down: what others
// do with it, or, where these do little, what the program itself does more often than sending.
func (f *Finder) isFetchedFrom(key siteKey, s *site) bool {
	others := f.elsewhere(key, s)
	if others.n >= few {
		return others.down > 4*others.up
	}
	d := s.downloads
	return d.n+others.n >= few && d.down+others.down > 4*(d.up+others.up) && s.uploads.n < d.n*2
}

// isNew reports whether a destination came up when the log had gone on for long.
func (f *Finder) isNew(s *site) bool {
	return f.flows >= 1000 && s.since > f.flows/10
}

// beats is about what comes by a timer, also one that is shaken. It is ordinary for what polls and
// for telemetry, which begin with the log and go where nobody fetches from, so by itself it
// counts for little.
func (f *Finder) beats(key siteKey, s *site) Signal {
	p := &s.small
	n, share, about := p.regular()
	if m, other, every := s.fetched.regular(); m >= 3*few && other > share {
		p, n, share, about = &s.fetched, m, other, every
	}
	lasted := p.last.Sub(p.first)
	if n < 3*few || share < alikeShare || share*float64(n)*about.Seconds() < alikeShare/2*lasted.Seconds() {
		return Signal{} // what comes in bursts leaves most of the time out
	}
	var r reasons
	r.note(5+scaled(lasted.Hours(), 2, 24, 10), "%d times, mostly every %s (%.0f%%), for %s", n+1, about, 100*share, lasted.Round(time.Minute))
	if f.isNew(s) {
		r.note(10, "the destination was not used before")
	}
	if policy.HandedOut(key.destination) {
		r.note(10, "a name that anybody can have")
	}
	if f.isRare(key) {
		r.note(5, "the program does little else in this sandbox")
	}
	if s.when.idleShare(f.work[key.sandbox]) > 0.3 {
		r.note(15, "also at hours in which the sandbox does little else")
	}
	if o := f.elsewhere(key, s); p == &s.small && o.n >= few && o.down > 4*o.up {
		r.note(15, "others with this destination mostly fetch")
	}
	return r.signal("beacon", 70)
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
