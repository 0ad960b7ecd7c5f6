package signals_test

import (
	"slices"
	"testing"

	"github.com/egressd/egressd/record"
)

// TestTheFirstLegOfARelayIsNamed plants a relay, whose last leg is a row, and looks for the requests of the two legs before it.
func TestTheFirstLegOfARelayIsNamed(t *testing.T) {
	s, w := scene7(tunedSeed(3), 5000)
	i := slices.IndexFunc(thefts7, func(x theft7) bool { return x.name == "a relay's second leg" })
	p := thefts7[i].plant(w)
	methods := map[string]*record.Record{}
	for _, r := range w.out {
		if r.HTTP != nil {
			methods[r.Flow] = r
		}
	}
	rows := s.ranked(decided(w.finish()))
	place := placeOf(rows, p)
	if place == 0 || rows[place-1].Signals[0].From == nil {
		t.Fatalf("place %d: %+v", place, rows[:min(3, len(rows))])
	}
	leg := rows[place-1].Signals[0].From
	sent, fetched := methods[leg.Sent], methods[leg.Fetched]
	if sent == nil || sent.HTTP.Method != "PUT" || sent.Sandbox != leg.Sandbox || leg.Sandbox == p.sandbox {
		t.Errorf("it was sent by %+v: %+v", leg, sent)
	}
	if fetched == nil || fetched.HTTP.Method != "GET" || fetched.Sandbox != p.sandbox || fetched.HTTP.Path != sent.HTTP.Path {
		t.Errorf("it was fetched by %+v: %+v", leg, fetched)
	}
}
