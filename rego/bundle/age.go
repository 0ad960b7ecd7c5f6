package bundle

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// A clock says what time it is at least: it follows the wall clock, and where that
// is set back, or stands still with the machine, what has passed since base was
// true. It never goes back by itself.
type clock struct {
	base  time.Time // without a monotonic reading
	since time.Time // when base was true, with one
}

// clockFrom returns a clock that begins now, or at the latest time that is known
// to have been.
func clockFrom(latest time.Time) clock {
	now := time.Now()
	if wall := now.Round(0); wall.After(latest) {
		latest = wall
	}
	return clock{latest, now}
}

func (c clock) now() time.Time {
	now := time.Now()
	return c.at(now.Sub(c.since), now.Round(0))
}

// at is the time where passed has gone by since base, and the wall says wall.
func (c clock) at(passed time.Duration, wall time.Time) time.Time {
	if counted := c.base.Add(passed); counted.After(wall) {
		return counted
	}
	return wall
}

// stale returns why a state no longer counts at now, without naming any host; ""
// while it does.
func (s *State) stale(now time.Time, maxAge time.Duration) string {
	switch {
	case s.Content == "":
		return "there is no good one"
	case !s.Expires.IsZero() && !now.Before(s.Expires):
		return fmt.Sprintf("it expired at %s", s.Expires.UTC().Format(time.RFC3339))
	case s.Heard.IsZero():
		return "its server was not heard yet"
	case now.Sub(s.Heard) >= maxAge:
		return fmt.Sprintf("its server was last heard at %s, more than %s ago", s.Heard.UTC().Format(time.RFC3339), maxAge)
	}
	return ""
}

// lapse returns when a state that counts will do so no longer.
func (s *State) lapse(maxAge time.Duration) time.Time {
	at := s.Heard.Add(maxAge)
	if !s.Expires.IsZero() && s.Expires.Before(at) {
		return s.Expires
	}
	return at
}

const (
	maxBackOff = 10 * time.Minute
	minWait    = time.Second
)

// wait returns how long to wait for the next fetch, after that many failures in a
// row and with left until the bundle is stale. random is from 0 to 1.
func (s *Source) wait(failures int, left time.Duration, random float64) time.Duration {
	w := s.Refresh
	for range failures - 1 {
		w = min(2*w, maxBackOff)
	}
	if failures > 0 {
		w = min(w, maxBackOff, s.MaxAge)
	}
	w += time.Duration(float64(w) * (random - 0.5) / 5)
	if left > 0 {
		w = min(w, left/2) // it is asked again before
	}
	return max(w, minWait)
}

// Wait returns how long to wait for the next fetch after that many failures in a
// row: about the source's Refresh, longer after failures, and never so long that
// the bundle is stale before.
func (f *Feed) Wait(failures int) time.Duration {
	return f.source.wait(failures, time.Until(f.Lapse()), rand.Float64())
}
