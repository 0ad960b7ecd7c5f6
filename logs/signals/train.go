package signals

import (
	"math"
	"slices"
	"time"
)

// A band holds the uploads of a lane whose sizes differ by less than a factor of two.
type band struct {
	n, up int64
	turns int64 // of n, those that repeat the flow before and add to it
	when  timeline
}

// Uploads beyond the last band stand out by size alone.
const trainBands = 14

func bandOf(class int) int { return min(trainBands-1, class/perDoubling) }

func (b *band) add(at, up int64, turn bool) {
	b.n, b.up = b.n+1, b.up+up
	if turn {
		b.turns++
	}
	b.when.add(at)
}

func (b *band) merge(o *band) {
	b.n, b.up, b.turns = b.n+o.n, b.up+o.up, b.turns+o.turns
	b.when.merge(&o.when)
}

// A train is a group of similar uploads of a lane: adjacent bands within a range of slots.
type train struct {
	from, till int // first and last band
	a, b       int // first slot and the slot after the last
	n, up      float64
	nats       float64 // bounded evidence that uploads are more frequent than at other times
	unbounded  float64 // the same evidence without bound
}

const (
	trainWide  = 3    // maximum number of bands
	trainNats  = 3.0  // bound for each side
	trainTries = 5.0  // nats; correction for the number of windows tried
	mostOfTime = 0.6  // maximum share of other flows inside a window; the rest is compared with
	bursty     = few  // minimum variance relative to Poisson; a session is one event of so many flows
	priorTrain = 3.0  // nats against; programs often do one thing for a while
	mostTurns  = 0.5  // part of the flows; less is chance
	trainPart  = 0.45 // share that an ordinary permanent upload explains
)

// trains counts the flows of a lane by slot, in each band and in total.
type trains struct {
	u     *traffic
	bands [trainBands][slots]float64
	all   [slots]float64
	last  int
}

func (l *lane) trains() *trains {
	t := &trains{u: l.uploads, all: l.all.in(&l.all), last: slots - int(l.all.free())}
	for i := range t.bands {
		t.bands[i] = l.uploads.bands[i].when.in(&l.all)
	}
	return t
}

// bestTrain returns the best train of l, which is expensive to compute. A rough caller accepts a result
// computed with at least two thirds of the flows.
func (l *lane) bestTrain(rough bool) train {
	if l.judged == 0 || l.judged != l.n && !(rough && l.judged*3 > l.n*2) {
		l.train, l.judged = l.trains().best(), l.n
	}
	return l.train
}

// scattered returns how much the other bands vary over time, relative to chance. Ordinary software sends
// in bursts, so a train must stand out from such variation.
func (t *trains) scattered(from, till int, rest *[slots]float64) float64 {
	var all []float64
	for i := range t.bands {
		n, of := sumOf(t.bands[i][:]), sumOf(rest[:])
		if i >= from && i <= till || n < few {
			continue
		}
		sum := 0.0
		for s, c := range t.bands[i] {
			if expected := rest[s] * n / of; expected > 0 {
				sum += (c - expected) * (c - expected) / expected
			}
		}
		all = append(all, sum/float64(t.last))
	}
	if len(all) == 0 {
		return bursty
	}
	slices.Sort(all)
	return max(bursty, all[len(all)/2])
}

func sumOf(of []float64) (sum float64) {
	for _, x := range of {
		sum += x
	}
	return sum
}

// best returns the train with the strongest evidence by time alone. It is Kulldorff's scan: it looks for
// slots in which similar uploads are a larger share of all flows than elsewhere.
func (t *trains) best() (best train) {
	most := 0.0
	for from := range t.bands {
		for till := from; till < min(trainBands, from+trainWide); till++ {
			x := t.inBands(from, till)
			if says := x.nats * worth(x.up); says > most || says > 0 && says == most && x.unbounded > best.unbounded {
				best, most = x, says
			}
		}
	}
	return best
}

// A split holds running totals of the flows in some bands and of all other flows, before each slot.
type split struct {
	own, rest [slots + 1]float64
	others    [slots]float64 // other flows in each slot
}

func (t *trains) split(from, till int) (x split) {
	for s, all := range t.all {
		c := 0.0
		for i := from; i <= till; i++ {
			c += t.bands[i][s]
		}
		x.others[s] = max(0, all-c)
		x.own[s+1], x.rest[s+1] = x.own[s]+c, x.rest[s]+x.others[s]
	}
	return x
}

// windows lists the numbers of slots that a train may span. More lengths would add little.
var windows = []int{1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40}

// inBands returns the train with the strongest evidence in the bands from, …, till.
func (t *trains) inBands(from, till int) (best train) {
	x := t.split(from, till)
	if x.own[slots] < few || x.rest[slots] < 2*few {
		return best
	}
	scattered := t.scattered(from, till, &x.others)
	for _, width := range windows {
		for a := 0; a+width <= t.last; a++ {
			one := x.window(a, a+width, scattered)
			if one.nats > best.nats || one.nats > 0 && one.nats == best.nats && one.unbounded > best.unbounded {
				best = one
			}
		}
	}
	var n, up float64
	for i := from; i <= till; i++ {
		n, up = n+float64(t.u.bands[i].n), up+float64(t.u.bands[i].up)
	}
	best.from, best.till, best.up = from, till, best.n*up/n
	return best
}

// window returns the train in slots a to b. Its evidence is the binomial likelihood of its share inside
// the window against its share outside. Traffic that fills most of the log has no outside.
func (x *split) window(a, b int, scattered float64) train {
	sum, beside := x.own[slots], x.rest[slots]
	c, r := x.own[b]-x.own[a], x.rest[b]-x.rest[a]
	if c < 2*few || r > mostOfTime*beside {
		return train{}
	}
	in, out := (c+0.5)/(c+r+1), (sum-c+0.5)/(sum-c+beside-r+1)
	if in < 2*out {
		return train{}
	}
	unbounded := (c*math.Log(in/out)+r*math.Log((1-in)/(1-out)))/scattered - trainTries
	return train{a: a, b: b, n: c - r*out/(1-out), nats: max(0, min(trainNats, unbounded, math.Log(in/out))), unbounded: unbounded}
}

// between counts the flows from one band to another.
func (s *sizes) between(from, till int) (n int64) {
	for i, c := range s {
		if b := bandOf(i); b >= from && b <= till {
			n += int64(c)
		}
	}
	return n
}

// alike scores uploads of similar size that cluster in time or that other programs do not send.
func (f *Finder) alike(key siteKey, host string, l *lane) Signal {
	if l.uploads.n < few || l.all.of == nil {
		return Signal{}
	}
	x := l.bestTrain(f.rough)
	var e evidence
	if x.nats > 0 {
		took := time.Duration(x.b-x.a) << l.all.scale * time.Second
		e.add(x.nats, "more of this size than at other times, within %s", took)
	} else if x = f.unlikeOthers(key, host, l); x.n == 0 {
		return Signal{}
	}
	nats, who := f.against(key, host, l, x.from, x.till)
	e.add(nats, "%s", who)
	f.hour(&e, key, l)
	if turns := l.uploads.turns(x.from, x.till); turns >= mostTurns {
		e.discount(turns, "most repeat the one before and add to it, as a conversation does")
	}
	if x.nats == 0 {
		e.discount(trainPart, "all through the log")
	}
	return uploadSignal(x.up, &e, priorTrain, "%s up in %.0f flows of %s", size(int64(x.up)), x.n, x.sizes())
}

// turns returns which part of the flows in some bands repeats the flow before and adds to it.
func (t *traffic) turns(from, till int) float64 {
	var turns, n int64
	for _, b := range t.bands[from : till+1] {
		turns, n = turns+b.turns, n+b.n
	}
	return float64(turns) / float64(max(1, n))
}

// sizes formats the size range of the bands.
func (x *train) sizes() string {
	low := size(int64(leastSize) << x.from)
	if x.till == trainBands-1 {
		return low + " and more" // the last band has no upper bound
	}
	return low + " to " + size(int64(leastSize)<<(x.till+1))
}

// unlikeOthers returns the train that differs most from other traffic at any time.
func (f *Finder) unlikeOthers(key siteKey, host string, l *lane) (best train) {
	most := 0.0
	for from := range trainBands {
		x := train{from: from, till: from, b: slots}
		for i := from; i < min(trainBands, from+trainWide); i++ {
			x.till = i
			x.n += float64(l.uploads.bands[i].n)
			x.up += float64(l.uploads.bands[i].up)
			if x.n < few {
				continue
			}
			if nats, _ := f.against(key, host, l, x.from, x.till); nats*worth(x.up) > most {
				best, most = x, nats*worth(x.up)
			}
		}
	}
	return best
}

// against compares the frequency of such flows with similar traffic. It takes the first of these that has any: the
// same program in other sandboxes, other programs at the host, other flows of the program at the host.
func (f *Finder) against(key siteKey, host string, l *lane, from, till int) (nats float64, words string) {
	u, pair, there := l.uploads, f.pools.pairs[pairKey{key.program, host}], f.pools.hosts[host]
	k := u.of.between(from, till)
	if m := pair.n - l.n; m >= 2*few {
		others := pair.sent.without(&u.of)
		return unlike(k, l.n, others.between(from, till), m, trainNats), "other sandboxes do not by this program"
	}
	if m := there.n - l.n; m >= 2*few {
		others := there.sent.without(&u.of)
		return unlike(k, l.n, others.between(from, till), m, 2), "others with this destination do not"
	}
	if m := l.n - k; m >= 2*few {
		rest := float64(u.n-k+1) / float64(m+20)
		return min(1.5, max(0, -1-math.Log(rest))), "what else it does there is to fetch"
	}
	return 0, ""
}
