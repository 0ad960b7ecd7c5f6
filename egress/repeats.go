package egress

import (
	"net/netip"
	"sync"
	"time"
)

// Denials that repeat are summed: of those that agree in all that a record says, and
// in the canary that was found, but the id, the source port, and the number and arguments of the process, the
// first ten in a second have records of their own. Those that follow in that
// second are one more record, written when it is over, with their exact number and
// the id of the last record before it, which is also the id in their replies. So an
// id in a reply is in the log before the reply is sent, and what the death of the
// process can take is the number of repeats since the last second.
//
// What passes is never summed.
const (
	repeatsFrom  = 10 // records of one kind in a second that are written one by one
	repeatsAfter = time.Second
	repeatsMost  = 256 // kinds of one sandbox that are told apart; others are written one by one
)

// repeats are the denials of one sandbox in the last second. Its zero value is
// ready; it is safe for concurrent use.
type repeats struct {
	mu    sync.Mutex // guards what follows; held while a sum is written, so that nothing is between
	kinds map[string]*repeat
	timer *time.Timer
	room  []byte // for keys
}

// A repeat is one kind of denial.
type repeat struct {
	began   time.Duration // since gate.began
	written int           // records of its own since then
	id      ID            // of the last of them
	more    int64         // denials that are in no record yet
	at      int           // in the key, where id and number go
	size    int           // of the record in the key; behind it is the canary
}

// empty reports whether nothing is counted, and nothing about to be. It does not wait for
// a sum that is being written.
func (s *repeats) empty() bool {
	if !s.mu.TryLock() {
		return false
	}
	defer s.mu.Unlock()
	return len(s.kinds) == 0
}

// refused records a refusal, or counts it where it is one of many. Then the flow
// has the id of the record that it is counted with. A log that fails refuses too.
func (f *Flow) refused(r recordOf) *Refusal {
	if r.canary == nil {
		r.canary = f.sighted()
	}
	s := f.gate.repeatsOf(f)
	key, id, one := s.count(f, r)
	if !one {
		f.id = id
		f.note(r)
		return nil
	}
	seq, err := f.append(r)
	if err != nil {
		return f.refusal(unavailable)
	}
	f.seq = seq
	s.wrote(key, f.id)
	if r.canary != nil {
		f.sight(*r.canary)
	}
	return nil
}

// repeatsOf finds where the refusals of f's sandbox are counted.
func (g *Gate) repeatsOf(f *Flow) *repeats {
	if name := f.request.Sandbox.Name; name != "" {
		return &g.slotOf(name).repeats
	}
	return &g.nobodys
}

// count counts a refusal with those before it and returns the id of their record,
// or one: it is to have a record of its own. Then wrote has to be told, with key,
// when it is written.
func (s *repeats) count(f *Flow, r recordOf) (key string, id ID, one bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.gate.shut.Load() { // nobody may come any more to write a sum
		return "", 0, true
	}
	e := encoder{b: s.room[:0], common: true}
	e.flow(f, r)
	size := len(e.b)
	if r.canary != nil {
		e.canary(*r.canary)
	}
	f.gate.mask(e.b)
	s.room = e.b
	now := time.Since(f.gate.began)
	k := s.kinds[string(e.b)]
	if k == nil {
		return s.begin(f, repeat{began: now, at: e.idAt, size: size}, e.b), 0, true
	}
	if now-k.began >= repeatsAfter {
		if !s.say(f.gate, string(e.b), k) {
			return "", 0, true
		}
		k.began, k.written = now, 0
	}
	if k.written < repeatsFrom && !(r.crowd && k.written > 0) {
		return string(e.b), 0, true
	}
	k.more++
	return "", k.id, false
}

// begin makes room for a kind that was not there, or returns no key where there is
// none. s.mu is held.
func (s *repeats) begin(f *Flow, k repeat, text []byte) (key string) {
	if len(s.kinds) >= repeatsMost {
		return ""
	}
	if s.kinds == nil {
		s.kinds = map[string]*repeat{}
	}
	key = string(text)
	s.kinds[key] = &k
	if len(s.kinds) == 1 {
		s.await(f.gate)
	}
	return key
}

// wrote notes that a record with the key was written. One that came to nothing
// before is not waited for.
func (s *repeats) wrote(key string, id ID) {
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
func (s *repeats) await(g *Gate) {
	if s.timer == nil {
		s.timer = time.AfterFunc(repeatsAfter, func() { s.settle(g, false) })
		return
	}
	s.timer.Reset(repeatsAfter)
}

// settle writes the sums of what is over, or all of them, and forgets what has not
// come again.
func (s *repeats) settle(g *Gate, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Since(g.began)
	for key, k := range s.kinds {
		over := now-k.began >= repeatsAfter
		if (over || all) && s.say(g, key, k) && over {
			delete(s.kinds, key)
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
func (s *repeats) say(g *Gate, key string, k *repeat) bool {
	if k.more == 0 {
		return true
	}
	if _, err := g.config.Log.Append(summed(key[:k.size], k.at, k.id, k.more)); err != nil {
		return false
	}
	k.more = 0
	return true
}

// Settle writes what was counted and is in no record yet. It is to be called between
// Shut, after which nothing is counted, and the end of the log.
func (g *Gate) Settle() {
	g.mu.Lock()
	all := []*repeats{&g.nobodys}
	for _, s := range g.slots {
		all = append(all, &s.repeats)
	}
	g.mu.Unlock()
	for _, s := range all {
		s.settle(g, true)
	}
}

// withoutPort is an address with the port that stands for any.
func withoutPort(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), 0) }
