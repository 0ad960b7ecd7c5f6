package replay

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/record"
)

// bound adds bounds of bytes to what is tried: of one request, and of a sandbox in a day.
func (c *course) bound(hosts []string) {
	if most := c.sent.unusual(); most > 0 && len(c.rules) == 1 {
		var lines []string
		for _, host := range hosts {
			lines = append(lines, "{host: "+strconv.Quote(host)+", max_bytes_up: "+bytesText(most)+"}")
		}
		rule := slices.Collect(maps.Keys(c.rules))[0]
		c.trials = append(c.trials, &perRequest{hosts: c.hosts, most: most, Tried: Tried{Policy: "allow: [" + strings.Join(lines, ", ") + "]", Deny: []string{}, Rule: rule}})
	}
	if most := c.sent.perDay(); most > 0 {
		text := "budgets: [{hosts: [" + quoted(hosts) + "], up: " + bytesText(most) + ", per: 24h}]"
		c.trials = append(c.trials, &perDay{hosts: c.hosts, most: most, days: map[string]*slidingDay{}, Tried: Tried{Policy: text, Deny: []string{}}})
	}
}

// bytesText writes a round number of bytes as the policy file takes it.
func bytesText(n int64) string {
	return strings.NewReplacer(" ", "", ".0", "").Replace(quantity.Bytes(n))
}

// perRequest is max_bytes_up of the rule that lets requests to some hosts pass.
type perRequest struct {
	hosts map[string]bool
	most  int64
	Tried
}

func (t *perRequest) try(_ context.Context, r *record.Record, own bool) {
	t.count(r, own, t.hosts[logs.Destination(r)] && upOf(r) > t.most)
}

func (t *perRequest) results() []Tried { return []Tried{t.Tried} }

// perDay is a budget of each sandbox.
type perDay struct {
	hosts map[string]bool
	most  int64
	days  map[string]*slidingDay // by sandbox; that of further sandboxes is ""
	Tried
}

// A slidingDay has what a sandbox sent in the last day, in slots.
type slidingDay struct {
	slots [slotsOfADay]int64
	sum   int64
	slot  int64 // the newest
}

const slotsOfADay = 60

func (t *perDay) try(_ context.Context, r *record.Record, own bool) {
	up := upOf(r)
	if !t.hosts[logs.Destination(r)] || up == 0 {
		t.count(r, own, false)
		return
	}
	s := t.days[r.Sandbox]
	if s == nil {
		s = &slidingDay{}
		t.days[strings.Clone(r.Sandbox)] = s
	}
	s.goTo(r.Time)
	denied := s.sum+up > t.most
	if !denied {
		s.slots[s.slot%slotsOfADay] += up
		s.sum += up
	}
	t.count(r, own, denied)
}

// goTo moves the day to a time. It stays where it is if the time is earlier.
func (s *slidingDay) goTo(at time.Time) {
	slot := at.Unix() / (24 * 3600 / slotsOfADay)
	if slot-s.slot >= slotsOfADay {
		*s = slidingDay{slot: slot}
	}
	for s.slot < slot {
		s.slot++
		s.sum -= s.slots[s.slot%slotsOfADay]
		s.slots[s.slot%slotsOfADay] = 0
	}
}

func (t *perDay) results() []Tried { return []Tried{t.Tried} }
