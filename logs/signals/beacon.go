package signals

import (
	"fmt"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
)

// elsewhere sums the traffic of all other programs and sandboxes with the destination of s.
func (f *Finder) elsewhere(key siteKey, s *site) pool {
	p := *f.pools.destinations[key.destination]
	for _, l := range s.lanes {
		p.n, p.up, p.down = p.n-l.n, p.up-l.up, p.down-l.down
		if l.uploads != nil {
			p.up, p.down = p.up-l.uploads.up, p.down-l.uploads.down
		}
	}
	return p
}

// reasons collects points for a signal, each with its text.
type reasons struct {
	score int
	words []string
}

func (r *reasons) note(points int, format string, a ...any) {
	r.score += points
	r.words = append(r.words, fmt.Sprintf(format, a...))
}

func (r *reasons) signal(what string, most int) Signal {
	return Signal{what, min(r.score, most), strings.Join(r.words, "; "), nil}
}

// beats scores traffic on a timer, including timers with random delay. Polling and telemetry also run on
// timers, so a timer alone scores low.
func (f *Finder) beats(key siteKey, s *site) Signal {
	p := &s.small
	n, share, about := p.regular()
	if m, other, every := s.fetched.regular(); m >= 3*few && other > share {
		p, n, share, about = &s.fetched, m, other, every
	}
	lasted := p.last.Sub(p.first)
	if !p.isTimer() {
		return Signal{}
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
	if others := f.pools.timers[pairKey{key.program, key.destination}]; key.program != "" && others > 1 && !f.isNew(s) && !policy.HandedOut(key.destination) {
		r.score >>= others - 1
		r.words = append(r.words, fmt.Sprintf("but the program does so in other sandboxes as well (%d)", others-1))
	}
	return r.signal("beacon", 70)
}

// isTimer reports whether most of the time has a flow at one interval. Bursts leave most of it without traffic.
func (p *pulse) isTimer() bool {
	n, share, about := p.regular()
	return n >= 3*few && share >= alikeShare && share*float64(n)*about.Seconds() >= alikeShare/2*p.last.Sub(p.first).Seconds()
}

// size formats a number of bytes for people.
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
