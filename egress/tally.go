package egress

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/egressd/egressd/policy"

	"github.com/egressd/egressd/record"
)

// A Tally counts what passed a gate and what did not, for who started it. Its
// zero value is ready; it is safe for concurrent use.
type Tally struct {
	mu     sync.Mutex // guards what follows
	counts Counts
	hosts  map[string]struct{}
	denied map[string]int // connections and requests, 0 where a name was only asked for
}

// Counts is what a [Tally] says.
type Counts struct {
	Requests int // connections, and of those that are looked into the requests
	Hosts    int
	Up, Down int64 // payload bytes
	Denied   []DeniedHost
	Learned  int // of the requests, those that passed because of [policy.LearnRule]
}

// A DeniedHost is a host and how often it was denied; that its name was only
// asked for counts as once.
type DeniedHost struct {
	Host  string
	Times int
}

const talliedMost = 4096

// otherHosts stands for the hosts that were too many to count one by one.
const otherHosts = "others"

// Counts returns what was counted so far, what was denied most first.
func (t *Tally) Counts() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.counts
	c.Hosts = len(t.hosts)
	for _, host := range slices.Sorted(maps.Keys(t.denied)) {
		c.Denied = append(c.Denied, DeniedHost{host, max(1, t.denied[host])})
	}
	slices.SortStableFunc(c.Denied, func(a, b DeniedHost) int { return cmp.Compare(b.Times, a.Times) })
	return c
}

// note counts what a record says. t may be nil.
func (t *Tally) note(f *Flow, r recordOf) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	denies := f.decision.Class != "" && !passes(f.decision.Verdict)
	host := f.gate.withoutCanary(f.request.Destination.Host)
	switch {
	case r.kind == record.KindDNS && f.request.Via == policy.ViaDNS && denies:
		t.deny(host, 0)
	case r.kind == record.KindDNS:
	case denies:
		t.deny(cmp.Or(host, "malformed requests"), 1)
	case r.kind == record.KindClose:
		t.ended(f, r.end)
	}
}

func (t *Tally) deny(host string, times int) {
	if t.denied == nil {
		t.denied = map[string]int{}
	}
	if _, known := t.denied[host]; !known && len(t.denied) >= talliedMost {
		host = otherHosts
	}
	t.denied[host] += times
}

// ended counts a flow. One that others were opened in their place counts by
// those.
func (t *Tally) ended(f *Flow, end End) {
	hello := f.request.TLS
	inside := f.request.HTTP == nil && hello != nil && hello.Inspected
	if inside || end.Outcome == "http" {
		return
	}
	t.counts.Requests++
	if f.decision.Rule == policy.LearnRule {
		t.counts.Learned++
	}
	t.counts.Up += end.Up
	t.counts.Down += end.Down
	if t.hosts == nil {
		t.hosts = map[string]struct{}{}
	}
	if len(t.hosts) < talliedMost {
		t.hosts[f.request.Destination.Host] = struct{}{}
	}
}
