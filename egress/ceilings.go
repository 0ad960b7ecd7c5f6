package egress

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/policy"
)

// A SpanBudget bounds what one sandbox sends to some hosts in any span of time of a length.
type SpanBudget struct {
	Name  string           // of its entry in the policy file, such as "budgets[0]"
	Hosts []policy.Pattern // each at every port, unless it names some
	Up    int64            // bytes of heads, bodies and tunnels
	Per   time.Duration
}

// holds reports whether the budget is for a destination.
func (b *SpanBudget) holds(to *policy.Destination) bool {
	return slices.ContainsFunc(b.Hosts, func(p policy.Pattern) bool {
		p = p.AnyPort()
		return to.Addr.IsValid() && p.MatchesAddr(to.Addr, to.Port) || !to.Addr.IsValid() && p.MatchesName(to.Host, to.Port)
	})
}

// key identifies the budget in the next policy file: its bytes may change.
func (b *SpanBudget) key() string {
	texts := []string{b.Per.String()}
	for _, p := range b.Hosts {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, " ")
}

func (b *SpanBudget) refusal() policy.Decision {
	return policy.Decision{
		Class: policy.ByteBudget, Rule: b.Name, Layer: policy.User,
		Reason: fmt.Sprintf("%s lets a sandbox send at most %s to these hosts in %s", b.Name, quantity.Bytes(b.Up), strings.TrimSuffix(strings.TrimSuffix(b.Per.String(), "0s"), "0m")),
	}
}

// SpanBudgets count what sandboxes send to hosts that have budgets. All sandboxes of a template share one count, since a token
// may make up any number of them. The zero value has no budgets. It is safe for concurrent use.
type SpanBudgets struct {
	all atomic.Pointer[[]SpanBudget] // nil: none

	mu   sync.Mutex // guards what follows
	used map[spanKey]*spanCount
}

type spanKey struct{ holder, budget string }

// Set sets the budgets. What was counted for a budget with the same hosts and time stays counted.
func (s *SpanBudgets) Set(all []SpanBudget) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all.Store(nil)
	if len(all) == 0 {
		s.used = nil
		return
	}
	kept := map[spanKey]*spanCount{}
	for key, used := range s.used {
		if slices.ContainsFunc(all, func(b SpanBudget) bool { return b.key() == key.budget }) {
			kept[key] = used
		}
	}
	s.used = kept
	all = slices.Clone(all)
	s.all.Store(&all)
}

// Add counts what holder has sent at some time, as the log says.
func (s *SpanBudgets) Add(holder string, to policy.Destination, bytes int64, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.of(&to) {
		s.span(holder, b).add(at, bytes)
	}
}

// of returns the budgets for a destination.
func (s *SpanBudgets) of(to *policy.Destination) (found []*SpanBudget) {
	all := s.all.Load()
	if all == nil {
		return nil
	}
	for i := range *all {
		if b := &(*all)[i]; b.holds(to) {
			found = append(found, b)
		}
	}
	return found
}

// span returns what a holder has used. s.mu is held.
func (s *SpanBudgets) span(holder string, b *SpanBudget) *spanCount {
	key := spanKey{holder, b.key()}
	if s.used[key] == nil {
		s.used[key] = &spanCount{slot: max(b.Per/spanSlots, 1)}
	}
	return s.used[key]
}

// take counts bytes before they go. It returns the budget that has not so many left, and then counts nothing.
func (s *SpanBudgets) take(holder string, to *policy.Destination, bytes int64, now time.Time) *SpanBudget {
	s.mu.Lock()
	defer s.mu.Unlock()
	over := s.exceededLocked(holder, to, bytes, now)
	if over == nil {
		for _, b := range s.of(to) {
			s.span(holder, b).add(now, bytes)
		}
	}
	return over
}

// exceeded returns the first budget that has not so many bytes left, or nil.
func (s *SpanBudgets) exceeded(holder string, to *policy.Destination, bytes int64, now time.Time) *SpanBudget {
	if s.all.Load() == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.exceededLocked(holder, to, bytes, now)
}

// exceededLocked is called with s.mu held.
func (s *SpanBudgets) exceededLocked(holder string, to *policy.Destination, bytes int64, now time.Time) *SpanBudget {
	for _, b := range s.of(to) {
		if used := s.span(holder, b).total(now); bytes > b.Up-used {
			return b
		}
	}
	return nil
}

// spanSlots is how exact a span is: bytes leave it up to one slot late.
const spanSlots = 60

// A spanCount counts bytes of the last time by slots.
type spanCount struct {
	slot time.Duration
	last int64 // number of the newest slot
	by   [spanSlots + 1]int64
	sum  int64
}

// advance drops what is too old. Time does not go back.
func (w *spanCount) advance(now time.Time) {
	slot := now.UnixNano() / int64(w.slot)
	if slot-w.last > spanSlots {
		w.last, w.by, w.sum = slot, [spanSlots + 1]int64{}, 0
		return
	}
	for w.last < slot {
		w.last++
		oldest := &w.by[w.last%int64(len(w.by))]
		w.sum -= *oldest
		*oldest = 0
	}
}

func (w *spanCount) add(at time.Time, bytes int64) {
	w.advance(at)
	slot := at.UnixNano() / int64(w.slot)
	if w.last-slot > spanSlots {
		return
	}
	w.by[slot%int64(len(w.by))] += bytes
	w.sum += bytes
}

func (w *spanCount) total(now time.Time) int64 {
	w.advance(now)
	return w.sum
}

// Spend counts bytes of the flow before they go up. If a budget has fewer bytes left, Spend returns the refusal, and the caller
// closes the flow.
func (f *Flow) Spend(bytes int64) *Refusal {
	budgets := &f.gate.Ceilings
	if bytes <= 0 || budgets.all.Load() == nil {
		return nil
	}
	f.mu.Lock()
	holder, to := f.request.Sandbox.Holder(), f.request.Destination
	f.mu.Unlock()
	over := budgets.take(holder, &to, bytes, time.Now())
	if over == nil {
		return nil
	}
	refusal, _ := f.endWith(over.refusal(), func() {})
	return refusal
}

// spent returns the refusal of a flow whose budget is used up, or has less left than its request announces, or nil.
func (f *Flow) spent() *policy.Decision {
	least := int64(1)
	if h := f.request.HTTP; h != nil {
		least = max(least, h.BodySize)
	}
	over := f.gate.Ceilings.exceeded(f.request.Sandbox.Holder(), &f.request.Destination, least, time.Now())
	if over == nil {
		return nil
	}
	d := over.refusal()
	return &d
}
