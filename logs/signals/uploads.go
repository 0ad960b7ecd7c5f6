package signals

import (
	"fmt"
	"math"
	"time"

	"github.com/egressd/egressd/policy"
)

// Thresholds and weights of uploads.
const (
	few          = 12      // fewer flows do not show regularity
	volumeFrom   = 4 << 10 // bytes; a key, or a token with its context
	volumeTo     = 4 << 20 // bytes; larger uploads are hardly worse
	hugeVolume   = 1 << 30 // bytes; larger uploads are no worse
	hugePart     = 0.1     // share of the worth between volumeTo and hugeVolume
	uploadMost   = 95      // maximum score
	alikeSizes   = 0.3     // variation; pieces of a file. Prompts and commits vary by more than 1
	alikeGaps    = 0.7     // variation; a timer. People and agents vary by 1 and more
	alikeShare   = 0.6     // of the gaps, for a timer
	rareProgram  = 0.02    // share of all flows
	oneWay       = 8       // ratio of up to down; conversations have less
	talkPart     = 0.5     // of the evidence that others fetch, for a few conversations: which side says more differs from one to the next
	aloneMost    = 0.35    // maximum that a habit explains if nobody else has it
	lateFrom     = 0.25    // of the flows of a sandbox: a destination that was first used behind them has no habit from before
	lateMost     = 0.15    // maximum that a habit explains that began so late
	foreignTimes = 3       // how many times the flows of a foreign program the flows of a host are
	priorWhole   = 2.0     // nats against; most uploads are intended
	priorPart    = 2.5     // nats against a large upload; such uploads are rare but ordinary
)

// sends scores uploads. Uploads are ordinary, since a model receives the whole conversation with each
// request. The score is the worth of the bytes times the probability of an attempt, judged by sender, host
// and time, or by contrast with other uploads there.
func (f *Finder) sends(key siteKey, s *site) (best Signal) {
	for host, l := range s.lanes {
		all := []Signal{f.inHeads(key, host, l)}
		if l.uploads != nil {
			all = append(all, f.whole(key, host, l), f.part(key, host, l), f.alike(key, host, l), f.passesOn(key, host, l))
		}
		for _, one := range all {
			if one.Score > best.Score || one.Score == best.Score && one.Evidence < best.Evidence {
				best = one
			}
		}
	}
	return best
}

// worth rates the damage if up bytes leave, from 0 to 1.
func worth(up float64) float64 {
	part := func(from, to float64) float64 { return min(1, max(0, math.Log(up/from)/math.Log(to/from))) }
	return (1-hugePart)*part(volumeFrom, volumeTo) + hugePart*part(volumeTo, hugeVolume)
}

func uploadSignal(up float64, e *evidence, prior float64, format string, a ...any) Signal {
	score := uploadMost * worth(up) * e.probability(prior)
	return Signal{"upload", int(score), fmt.Sprintf(format, a...) + e.words(), nil}
}

// whole scores all uploads of a lane together.
func (f *Finder) whole(key siteKey, host string, l *lane) Signal {
	var e evidence
	u := l.uploads
	alone := f.hostUse(&e, key, host, l)
	f.sender(&e, key, host, l)
	f.hour(&e, key, l)
	l.pace(&e)
	f.habits(&e, key, host, l, alone)
	return uploadSignal(float64(u.up), &e, priorWhole, "%s up and %s down in %d flows that mostly send", size(u.up), size(u.down), u.n)
}

// hostUse adds findings about how others use the host and since when. It reports whether the others use it
// differently.
func (f *Finder) hostUse(e *evidence, key siteKey, host string, l *lane) (alone bool) {
	p := f.pools.hosts[host]
	own, others := l.uploads.n, p.sent.without(&l.uploads.of)
	n, alike, most := p.n-l.n, others.atLeast(classOf(int64(math.Exp(l.uploads.of.quantile(0.25))))), 3.5
	up, down := p.up-l.up-l.uploads.up, p.down-l.down-l.uploads.down
	if n < few { // no others: compare with the program's own other flows
		n, alike, most = l.n-own, 0, 1.5
		up, down = l.up, l.down
	}
	if n >= few && down > 4*up {
		nats := unlike(own, l.n, alike, n, most)
		if l.uploads.n < few && l.uploads.up < oneWay*l.uploads.down {
			nats *= talkPart
		}
		e.add(nats, "others with this destination mostly fetch (%s)", size(down))
		alone = nats > 2
	}
	if seen := f.hours(key.sandbox).n; seen >= 10*few {
		late, most, by := float64(l.firstOwn)/float64(seen+1), 1.5, ""
		if p.since < l.since {
			most, by = 0.8, " by this sandbox"
		}
		e.add(min(most, -math.Log(1-late)*float64(l.uploads.occasions)), "the destination was not used before%s", by)
	}
	if known := f.pools.imitated(key.destination); known != "" {
		e.add(1.5, "its name is like %s", known)
	}
	switch {
	case isStore(host):
		e.add(0.5, "a store where many keep their own")
	case policy.HandedOut(key.destination):
		e.add(0.7, "a name that anybody can have")
	}
	return alone
}

// sender adds findings about the program elsewhere and about other users of the host.
func (f *Finder) sender(e *evidence, key siteKey, host string, l *lane) {
	everywhere, pair, there := f.pools.programs[key.program], f.pools.pairs[pairKey{key.program, host}], f.pools.hosts[host]
	if key.program == "" {
		if l.n < 2*l.uploads.n && there.n > 5*l.n {
			e.add(1, "it is mostly used by other sandboxes")
		}
		return
	}
	elsewhere := everywhere.sent.without(&l.uploads.of)
	if n := everywhere.n - l.n; n >= few {
		e.add(unlike(l.uploads.n, l.n, elsewhere.count(), n, 1.5), "the program mostly fetches elsewhere")
	} else if f.isRare(key) {
		e.add(1, "the program does little else in this sandbox")
	}
	if l.n == pair.n && l.n < 2*l.uploads.n && there.n > 5*l.n || f.isForeign(key, host, l) {
		e.add(1.5, "other programs are used with it")
	}
}

// isForeign reports whether other sandboxes use the host as well, none of them by this program, which mostly sends there.
func (f *Finder) isForeign(key siteKey, host string, l *lane) bool {
	pair, there := f.pools.pairs[pairKey{key.program, host}], f.pools.hosts[host]
	return key.program != "" && l.n == pair.n && l.n < 2*l.uploads.n && there.n-l.n >= few && there.n > foreignTimes*l.n && there.shared
}

func (f *Finder) hour(e *evidence, key siteKey, l *lane) {
	if l.when.idleShare(f.work[key.sandbox]) > 0.5 {
		e.add(1.5, "at hours in which the sandbox does little else")
	}
	if l.uploads != nil && l.hurried > l.uploads.up/2 {
		e.add(1.5, "%s of it soon after something else was denied", size(l.hurried))
	}
}

func (l *lane) pace(e *evidence) {
	u := l.uploads
	switch {
	case l.queries > u.up/2:
		e.add(2, "in the queries of requests")
	case l.heads > u.up/2:
		e.add(2, "in the heads of requests")
	}
	if u.n >= few {
		if v := u.sizes.variation(); v < alikeSizes {
			e.add(0.7, "in pieces of one size (±%.0f%%)", 100*v)
		}
		if v := u.gaps.variation(); v < alikeGaps {
			e.add(0.5, "about every %s", time.Duration(u.gaps.mean*float64(time.Second)).Round(time.Second))
		}
	}
	if l.slow != nil && l.slow.up > u.up/2 {
		e.add(1, "%s of it in flows of minutes", size(l.slow.up))
	}
}

// habits discounts findings that a habit explains: uploads throughout the log, equal amounts each day, or
// other sandboxes that do the same.
func (f *Finder) habits(e *evidence, key siteKey, host string, l *lane, alone bool) {
	u := l.uploads
	if n := f.pools.pairs[pairKey{key.program, host}].othersThatSend(key.sandbox, u.up); n > 0 {
		e.discount(1-math.Pow(0.5, float64(n)), "other sandboxes do as well (%d)", n)
	}
	if p := l.relayed; p != nil && float64(p.n) >= relayUsual*float64(u.n) && f.supplies(p.last.from, p.last.by) {
		e.discount(suppliedPart, "it passes on what %s leaves at %s for others", p.last.from, p.last.by)
	}
	through, daily := f.habitual(l), 0.0
	if days, alike := u.daily(); days >= 2 && alike {
		daily = 1 - 1/float64(days)
	}
	if alone || f.isForeign(key, host, l) {
		through, daily = min(through, aloneMost), min(daily, aloneMost)
	}
	if f.isLate(key, l) || f.pools.imitated(key.destination) != "" {
		through, daily = min(through, lateMost), min(daily, lateMost)
	}
	if daily > through {
		e.discount(daily, "about as much on each day")
	} else {
		e.discount(through, "now and then, all through the log")
	}
}

// isLate reports whether it is known how the sandbox was before it used the host.
func (f *Finder) isLate(key siteKey, l *lane) bool {
	seen := f.hours(key.sandbox).n
	return seen >= 10*few && float64(l.firstOwn) > lateFrom*float64(seen)
}

// habitual returns from 0 to 1 how habitual the uploads are. They must span most of the program's time at
// the host, with pauses. No window may hold most of the bytes, not counting the largest flow. A file sent
// in pieces is not a habit.
func (f *Finder) habitual(l *lane) float64 {
	u := l.uploads
	if u.greatest.up-u.largest > (u.up-u.largest)/2 || u.till-u.since < max((l.till-l.since)/2, f.flows/4) {
		return 0
	}
	return min(1, math.Log(float64(u.occasions))/math.Log(8))
}

// part scores uploads that stand out among all uploads of a lane.
func (f *Finder) part(key siteKey, host string, l *lane) Signal {
	u := l.uploads
	best := f.larger(key, l, &u.of, f.history(key, host, u), "flows")
	for _, one := range []Signal{f.larger(key, l, &u.quarters, ownHistory(&u.quarters), "quarters of a day"), f.slower(key, host, l)} {
		if one.Score > best.Score {
			best = one
		}
	}
	return best
}

// history returns the usual sizes to compare a flow with: those of the program in other sandboxes, or else
// its own. An unknown program is compared with all programs at the host.
func (f *Finder) history(key siteKey, host string, u *traffic) *usual {
	peers := f.pools.pairs[pairKey{key.program, host}].peers(&u.of)
	if peers.count() < 2*leastHistory && key.program == "" {
		peers = f.pools.hosts[host].peers(&u.of)
	}
	if peers.count() < 2*leastHistory {
		return ownHistory(&u.of)
	}
	is := peers.usual(true)
	return &is
}

// ownHistory returns the usual sizes in s, or nil if s has too few flows.
func ownHistory(s *sizes) *usual {
	if s.count() < leastHistory {
		return nil
	}
	is := s.usual(false)
	return &is
}

// larger scores entries of own that exceed history. If most entries do so throughout the log, they are the
// lane's habit.
func (f *Finder) larger(key siteKey, l *lane, own *sizes, history *usual, what string) Signal {
	if history == nil {
		return Signal{}
	}
	nats, from := surplus(own, *history)
	n, up := own.above(from)
	if nats == 0 || n > own.count()/2 && f.habitual(l) > 0 {
		return Signal{}
	}
	var e evidence
	e.add(min(4, nats), "more than the others let expect (mostly about %s)", size(int64(math.Exp(history.middle))))
	f.hour(&e, key, l)
	return uploadSignal(up, &e, priorPart, "%s up in the %d largest of %d %s that mostly send", size(int64(up)), n, own.count(), what)
}

// slower scores flows that take longer than a line needs for their bytes.
func (f *Finder) slower(key siteKey, host string, l *lane) Signal {
	s := l.slow
	if s == nil {
		return Signal{}
	}
	p, most := f.pools.hosts[host], 3.5
	n, also := p.n-l.n, p.slow-s.n
	if n < few { // no others
		n, also, most = l.n-s.n, 0, 2.5
	}
	odd := unlike(s.n, l.n, also, n, most)
	if also == 0 {
		odd = min(most, max(0, math.Log(float64(l.n+n)/20/float64(s.n))))
	}
	var e evidence
	e.add(odd, "which is slower than a line is, and others with this destination are not")
	f.hour(&e, key, l)
	return uploadSignal(float64(s.up), &e, priorPart, "%s up and %s down in %d flows that took %s", size(s.up), size(s.down), s.n, s.took.Round(time.Minute))
}

// isRare reports whether the program is known, has few flows, and has most of them with one destination.
func (f *Finder) isRare(key siteKey) bool {
	p := f.programs[programKey{key.sandbox, key.program}]
	s := f.sites[key]
	if key.program == "" || p == nil || s == nil || f.flows < 1000 {
		return false
	}
	return float64(p.flows) < rareProgram*float64(f.flows) && s.allowed*2 > p.flows
}

// isNew reports whether the destination first appeared late in the log.
func (f *Finder) isNew(s *site) bool {
	return f.flows >= 1000 && s.since > f.flows/10
}
