package signals

import (
	"math"
	"net/http"

	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/record"
)

// A heads counts the parts of the heads of a lane's requests without a body. Each part can carry data out, in amounts that
// are no upload by themselves.
type heads struct {
	parts [headParts]amounts
	paths distinct // paths that were asked for
}

const (
	inPath   = iota // bytes that a path can tell, counted for the first request of each path
	inQuery         // bytes of the query
	inFields        // all other bytes of the head
	headParts
)

var headWords = [headParts]string{"paths that were not asked for before", "queries", "fields"}

// amounts counts amounts of bytes by size, four classes per doubling.
type amounts struct {
	n  int64
	of [amountClasses]uint32
}

const (
	amountClasses   = 48
	amountsPerTwice = 4
	leastAmount     = 16  // bytes; smaller amounts are in the first class
	headUsual       = .98 // part of the requests of others that is usual
	headMost        = 3.0 // nats
)

func (a *amounts) add(bytes float64) {
	class := 0
	if bytes > leastAmount {
		class = min(amountClasses-1, 1+int(amountsPerTwice*math.Log2(bytes/leastAmount)))
	}
	a.n++
	a.of[class]++
}

func (a *amounts) merge(o *amounts) {
	a.n += o.n
	for i, n := range o.of {
		a.of[i] += n
	}
}

// without returns a minus o, which is part of a.
func (a amounts) without(o *amounts) amounts {
	a.n -= o.n
	for i, n := range o.of {
		a.of[i] -= min(a.of[i], n)
	}
	return a
}

// usual returns the class that the usual part of the requests does not exceed.
func (a *amounts) usual() int {
	rest := headUsual * float64(a.n)
	for i, c := range a.of {
		if rest -= float64(c); rest <= 0 {
			return i
		}
	}
	return amountClasses - 1
}

// above counts the requests beyond class, and the bytes that they have beyond it.
func (a *amounts) above(class int) (n int64, bytes float64) {
	at := func(class int) float64 { return leastAmount * math.Exp2(float64(class)/amountsPerTwice) } // upper bound
	for i := class + 1; i < amountClasses; i++ {
		n += int64(a.of[i])
		bytes += float64(a.of[i]) * (at(i) - at(class))
	}
	return n, bytes
}

func (h *heads) add(seed uint64, r *record.Record) {
	path, told := r.HTTP.Path, 0.0
	if h.paths.add(seed, path) {
		told = names.Information(path) / 8
	}
	h.parts[inPath].add(told)
	h.parts[inQuery].add(float64(r.HTTP.QueryBytes))
	if !r.HTTP.PathCut {
		h.parts[inFields].add(float64(r.Bytes.Up - int64(len(path)) - r.HTTP.QueryBytes))
	}
}

func (h *heads) merge(o *heads) {
	for i := range h.parts {
		h.parts[i].merge(&o.parts[i])
	}
	for i, w := range o.paths.set {
		h.paths.set[i] |= w
	}
}

// isHead reports whether all that the request sent is its head. A request that changed the protocol sent more.
func isHead(r *record.Record) bool {
	return r.HTTP != nil && !writes(r) && r.HTTP.Status != http.StatusSwitchingProtocols
}

// inHeads scores what the heads of requests have more than those of others: of who asks the same host, and of the same program
// anywhere. It sums over the whole log, so that a habit explains nothing.
func (f *Finder) inHeads(key siteKey, host string, l *lane) (best Signal) {
	if l.asked == nil {
		return best
	}
	for part := range headParts {
		own, others, usual := &l.asked.parts[part], amounts{}, 0
		there := f.pools.hosts[host]
		if part == inFields { // they differ by program
			there = f.pools.pairs[pairKey{key.program, host}]
		}
		for _, p := range []*pool{there, f.pools.programs[key.program]} {
			if rest := p.asked[part].without(own); rest.n >= 2*few {
				usual = max(usual, rest.usual())
				others.merge(&rest)
			}
		}
		n, bytes := own.above(usual)
		if others.n == 0 || n < few {
			continue
		}
		also, _ := others.above(usual)
		var e evidence
		e.add(unlike(n, own.n, also, others.n, headMost), "others have less there")
		f.hour(&e, key, l)
		one := uploadSignal(bytes, &e, priorPart, "%s more than usual in the %s of %d of %d requests without a body", size(int64(bytes)), headWords[part], n, own.n)
		if one.Score > best.Score {
			best = one
		}
	}
	return best
}
