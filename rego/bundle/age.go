package bundle

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// A clock returns a lower bound of the current time. It follows the wall clock, but never falls behind
// base plus the elapsed monotonic time.
type clock struct {
	base  time.Time // without monotonic reading
	since time.Time // time at which base was read, with monotonic reading
}

// clockFrom returns a clock that starts at the later of now and latest, the latest time known to have
// passed.
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

// at returns the time for an elapsed time since base and a wall clock reading.
func (c clock) at(passed time.Duration, wall time.Time) time.Time {
	if counted := c.base.Add(passed); counted.After(wall) {
		return counted
	}
	return wall
}

// stale returns why a state is no longer valid, without naming a host. It returns "" for a valid state.
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

// lapse returns the time at which the state becomes stale.
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

// wait returns the wait before the next fetch after consecutive failures. The argument left is the time
// until the bundle is stale; random is between 0 and 1.
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
		w = min(w, left/2) // leaves time for another attempt
	}
	return max(w, minWait)
}

// Wait returns the wait before the next fetch after consecutive failures. It is about Refresh, longer
// after failures, and ends before the bundle is stale.
func (f *Feed) Wait(failures int) time.Duration {
	return f.source.wait(failures, time.Until(f.Lapse()), rand.Float64())
}
