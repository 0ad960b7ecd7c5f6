package egress

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// Denials are summed with exact numbers, so that a sandbox cannot fill the disk with them.
//
// Denials of one kind have equal records and the same canary; only id, source port, pid and arguments differ. The first
// ten of a kind in a second have records of their own. After that second, one more record holds the
// number of the others, with the id of the last single record.
//
// A sandbox has a budget for these records ([logBudget]). Beyond it, denials of domains that were recorded before are summed
// by registered domain, in at most [sumsMost] sums. All others are summed by way in, kind and class. The
// first denial of each such sum has a record of its own in every second. The record says that others share its id.
//
// Every reply has the id of a record that is in the log already. A crash can lose the numbers since
// the last second. What passes is never summed.
const (
	repeatsFrom  = 10 // records of one kind in a second that are written one by one
	repeatsAfter = time.Second
	repeatsMost  = 256 // kinds of one sandbox that are told apart
	sumsMost     = 8   // sums by domain of one sandbox in a second

	domainsTold = 4096 // different domains of a sum that are counted
)

// repeatCounts sum the denials of one sandbox in the last second. The zero value is ready; it is safe for concurrent use.
type repeatCounts struct {
	mu      sync.Mutex // guards what follows; held while a sum is written, so that nothing is between
	kinds   map[string]*repeatCount
	domains int // of kinds, those by domain
	timer   *time.Timer
	key     []byte // that is being made
	own     logBudget
	shared  *logBudget // final: that of the template, in place of own, or nil
}

// A repeatCount is one kind of denial.
type repeatCount struct {
	by      summedBy
	began   time.Duration // since gate.began
	written int           // records of its own since then
	id      record.ID     // of the last of them
	more    int64         // denials that are in no record yet
	at      int           // in the key, where id and number go
	size    int           // of the record in the key; behind it is the canary
	names   summedNames   // of more, unless it is by kind
	first   bool          // its record was the first sighting of a domain, beyond the budget
}

// summedNames describe the names among summed denials: the first, the last, and the set of domains.
type summedNames struct {
	first   string
	last    []byte
	domains map[sight]struct{} // at most domainsTold
}

// A summedBy is what denials of one sum have in common.
type summedBy byte

const (
	byKind   summedBy = iota
	byDomain          // the registered domain, the rule and the program
	byRest            // way in, kind and class
)

// empty reports whether nothing is counted, and nothing about to be. It does not wait for
// a sum that is being written.
func (s *repeatCounts) empty() bool {
	if !s.mu.TryLock() {
		return false
	}
	defer s.mu.Unlock()
	return len(s.kinds) == 0
}

// recordRefusal records a refusal, or counts it where it is one of many. Then the flow
// has the id of the record that it is counted with. A log that fails refuses too.
func (f *Flow) recordRefusal(r recordOf) *Refusal {
	if r.canary == nil {
		r.canary = f.sighted()
	}
	s := f.gate.Records.repeatsOf(f)
	key, id, one := s.count(f, &r)
	if !one {
		f.id = id
		f.gate.Records.count(f, r)
		f.keepDenial()
		return nil
	}
	if r.shared {
		f.seq = sharedID
	}
	seq, err := f.gate.Records.append(f, r)
	if err != nil {
		return f.refusal(unavailable)
	}
	if !r.shared {
		f.seq = seq
	}
	s.wrote(key, f.id)
	f.keepDenial()
	if r.canary != nil {
		f.sight(*r.canary)
	}
	return nil
}

// count counts a refusal with those before it and returns the id of their record,
// or one: it is to have a record of its own. Then wrote has to be told, with key,
// when it is written.
// It sets r.shared if later denials may get the id of that record.
func (s *repeatCounts) count(f *Flow, r *recordOf) (key string, id record.ID, one bool) {
	budget := s.budget()
	d := counting{budget: budget, sight: budget.sightOf(f.request.Sandbox.Name, f.askedName()), now: time.Since(f.gate.began), scarce: f.gate.config.Log.Scarce()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.gate.shut.Load() { // nobody may come any more to write a sum
		return "", 0, true
	}
	for by := byKind; by < byRest; by++ {
		if by == byDomain && (d.scarce || !budget.isKnown(d.sight, d.now)) {
			continue
		}
		if key, id, one, known := s.countBy(by, f, *r, d); known {
			r.shared = one && by != byKind
			return key, id, one
		}
	}
	key, id, one, _ = s.countBy(byRest, f, *r, d)
	r.shared = one
	return key, id, one
}

// A counting holds the facts that decide how one denial is counted.
type counting struct {
	budget *logBudget
	sight  sight
	now    time.Duration // since gate.began
	scarce bool          // the disk has little space left
}

func (s *repeatCounts) budget() *logBudget {
	if s.shared != nil {
		return s.shared
	}
	return &s.own
}

// countBy is count for one way of summing. It returns known as false if the budget is used up, or
// if there are too many sums by domain.
func (s *repeatCounts) countBy(by summedBy, f *Flow, r recordOf, d counting) (key string, id record.ID, one, known bool) {
	e := encoder{Encoder: record.Encoder{Line: s.key[:0]}, common: true}
	e.summed(by, f, r)
	size := len(e.Line)
	e.Line = appendSighting(e.Line, by, r.canary)
	e.Line = append(e.Line, byte(by))
	f.gate.canaries.mask(e.Line)
	s.key = e.Line
	k := s.kinds[string(e.Line)]
	if k != nil && d.now-k.began >= repeatsAfter {
		if !s.say(f.gate, string(e.Line), k) {
			return "", 0, true, true
		}
		k.began, k.written = d.now, 0
	}
	alone := repeatsFrom
	if r.flood || by != byKind {
		alone = 1
	}
	cost := 1.0
	if r.canary != nil {
		cost++ // its signal
	}
	switch {
	case k == nil:
		first := false
		if by == byKind {
			if d.budget.take(d.scarce, cost) {
				d.budget.note(d.sight, d.now)
			} else if first = d.budget.takeFirst(d.sight, d.now, d.scarce); !first {
				return "", 0, false, false
			}
		}
		if by == byDomain && s.domains >= sumsMost {
			return "", 0, false, false
		}
		return s.begin(f, repeatCount{by: by, began: d.now, at: e.idAt, size: size, first: first}, e.Line), 0, true, true
	case k.written < alone && (by != byKind || d.budget.take(d.scarce, cost)):
		return string(e.Line), 0, true, true
	case k.more == 0 && by == byKind && !k.first && !d.budget.take(d.scarce, 1), k.id == 0:
		return "", 0, false, false
	}
	k.more++
	if by != byKind {
		k.names.add(f.named(), d.sight, k.more)
		f.seq = sharedID
	}
	return "", k.id, false, true
}

func (n *summedNames) add(name string, s sight, count int64) {
	if count == 1 {
		n.first, n.domains = strings.Clone(name), map[sight]struct{}{}
	}
	if len(n.domains) < domainsTold {
		n.domains[s] = struct{}{}
	}
	n.last = append(n.last[:0], name...)
}

// askedName returns the host or address of the request, or "" if the request had none.
func (f *Flow) askedName() string {
	if q := f.request.DNS; q != nil {
		return q.Name
	}
	return f.request.Destination.Host
}

// named is what f is about, as its records name it.
func (f *Flow) named() string {
	if q := f.request.DNS; q != nil {
		return f.gate.canaries.without(q.Name)
	}
	dst := &f.request.Destination
	if dst.Host == "" {
		return ""
	}
	return net.JoinHostPort(f.gate.canaries.without(dst.Host), strconv.Itoa(int(dst.Port)))
}

// domainOf is what stands in a sum for a name: "*." and its registered domain, or "*".
func domainOf(name string) string {
	if _, err := netip.ParseAddr(name); err == nil {
		return "*"
	}
	if domain := policy.Registrable(name); domain != "" {
		return "*." + domain
	}
	return "*"
}

// appendSighting appends what was found: denials for different canaries are never in one sum.
func appendSighting(b []byte, by summedBy, s *sighting) []byte {
	switch {
	case s == nil:
		return b
	case by == byRest:
		return append(b, s.Name...)
	}
	e := encoder{Encoder: record.Encoder{Line: b}}
	e.canary(*s)
	return e.Line
}

// begin keeps a new kind and returns its key, which is empty if there are too many kinds. s.mu is held.
func (s *repeatCounts) begin(f *Flow, k repeatCount, text []byte) (key string) {
	if k.by == byKind && len(s.kinds) >= repeatsMost {
		return ""
	}
	if s.kinds == nil {
		s.kinds = map[string]*repeatCount{}
	}
	key = string(text)
	s.kinds[key] = &k
	if k.by == byDomain {
		s.domains++
	}
	if len(s.kinds) == 1 {
		s.await(f.gate)
	}
	return key
}

// wrote notes that a record with the key was written. One that came to nothing
// before is not waited for.
func (s *repeatCounts) wrote(key string, id record.ID) {
	if key == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.kinds[key]; k != nil {
		k.written++
		if k.more == 0 { // or what was counted has another one's id
			k.id = id
		}
	}
}

// await has the sums written when a second is over. s.mu is held.
func (s *repeatCounts) await(g *Gate) {
	if s.timer == nil {
		s.timer = time.AfterFunc(repeatsAfter, func() { s.settle(g, false) })
		return
	}
	s.timer.Reset(repeatsAfter)
}

// settle writes the sums of past seconds, or with all every sum, and forgets kinds that did not repeat.
func (s *repeatCounts) settle(g *Gate, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Since(g.began)
	over := func(k *repeatCount) bool { return now-k.began >= repeatsAfter }
	var due []*repeatCount
	var records [][]byte
	for key, k := range s.kinds {
		if k.more > 0 && (over(k) || all) {
			due, records = append(due, k), append(records, k.sum(g, key))
		}
	}
	_, written, _ := g.config.Log.AppendAll(records) // at once: who is denied meanwhile waits for s.mu
	for _, k := range due[:written] {
		k.more = 0
	}
	for key, k := range s.kinds {
		if over(k) && k.more == 0 {
			delete(s.kinds, key)
			if k.by == byDomain {
				s.domains--
			}
		}
	}
	switch {
	case len(s.kinds) > 0 && !all && !g.shut.Load():
		s.await(g)
	case len(s.kinds) == 0:
		s.kinds = nil // which may have grown
	}
}

// say writes the record of what was counted, and reports whether nothing is left
// to say: where the log fails, it is said later. s.mu is held.
func (s *repeatCounts) say(g *Gate, key string, k *repeatCount) bool {
	if k.more > 0 {
		if _, err := g.config.Log.Append(k.sum(g, key)); err != nil {
			return false
		}
		k.more = 0
	}
	return true
}

func (k *repeatCount) sum(g *Gate, key string) []byte {
	var names *summedNames
	if k.by != byKind && k.names.first != "" {
		names = &k.names
	}
	record := summed(key[:k.size], k.at, k.id, k.more, names)
	g.canaries.mask(record)
	return record
}

// withoutPort is an address with the port that stands for any.
func withoutPort(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), 0) }

// summed inserts an id, a number and names into common, which encodes what n denials have in common.
// It leaves out n if it is 0, and names if they are nil.
func summed[T []byte | string](common T, at int, id record.ID, n int64, names *summedNames) []byte {
	e := encoder{Encoder: record.Encoder{Line: make([]byte, 0, len(common)+64)}}
	e.Line = append(e.Line, common[:at]...)
	e.Text("flow", id.String())
	if n > 0 {
		e.Number("count", n)
	}
	if names != nil {
		e.Open("names")
		e.Key("first")
		e.Quote(names.first, record.MaxRaw)
		e.Key("last")
		e.Quote(string(names.last), record.MaxRaw)
		e.Number("domains", int64(len(names.domains)))
		e.Close()
	}
	e.Line = append(e.Line, common[at:]...)
	return e.Line
}
