package egress

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/egressd/egressd/policy"

	"github.com/egressd/egressd/record"
)

// Flows are the open flows of a gate. They are safe for concurrent use.
type Flows struct {
	mu    sync.Mutex // guards what follows, and next and prev of each flow
	first *Flow
	n     int
}

// Count returns how many flows are open.
func (l *Flows) Count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

// Page returns up to most flows that began after the flow with the ID after, oldest first. more reports whether others
// follow. Pass the zero ID for the first page, and then the ID of the last flow.
func (l *Flows) Page(after record.ID, most int) (page []OpenFlow, more bool) {
	flows := slices.DeleteFunc(l.all(), func(f *Flow) bool { return f.id <= after })
	slices.SortFunc(flows, func(a, b *Flow) int { return cmp.Compare(a.id, b.id) })
	if more = len(flows) > most; more {
		flows = flows[:most]
	}
	page = make([]OpenFlow, len(flows))
	for i, f := range flows {
		page[i] = f.describe()
	}
	return page, more
}

// Has reports whether there is an open flow with that ID.
func (l *Flows) Has(id record.ID) bool {
	return slices.ContainsFunc(l.all(), func(f *Flow) bool { return f.id == id })
}

// Cut cuts an open flow, whose close record then has the outcome "cut", and reports whether there was one. The policy
// does not change: the sandbox may begin another flow.
func (l *Flows) Cut(id record.ID) bool {
	for _, f := range l.all() {
		if f.id == id {
			f.cut()
			return true
		}
	}
	return false
}

// CutContainer cuts the flows of a container that has ended, and refuses a flow of it that is being opened.
func (l *Flows) CutContainer(c *policy.Container) {
	c.End()
	for _, f := range l.of(func(s *policy.Sandbox) bool { return s.Container == c }) {
		f.cut()
	}
}

func (l *Flows) of(match func(*policy.Sandbox) bool) (flows []*Flow) {
	for _, f := range l.all() {
		f.mu.Lock()
		if match(&f.request.Sandbox) {
			flows = append(flows, f)
		}
		f.mu.Unlock()
	}
	return flows
}

func (l *Flows) hostsOf(sandbox string) map[string]bool {
	hosts := map[string]bool{}
	for _, f := range l.of(func(s *policy.Sandbox) bool { return s.Name == sandbox }) {
		hosts[f.Destination().Host] = true
	}
	return hosts
}

func (l *Flows) all() []*Flow {
	l.mu.Lock()
	defer l.mu.Unlock()
	flows := make([]*Flow, 0, l.n)
	for f := l.first; f != nil; f = f.next {
		flows = append(flows, f)
	}
	return flows
}

func (l *Flows) add(f *Flow) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.next = l.first
	if l.first != nil {
		l.first.prev = f
	}
	l.first = f
	l.n++
}

func (l *Flows) remove(f *Flow) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.prev != nil {
		f.prev.next = f.next
	} else {
		l.first = f.next
	}
	if f.next != nil {
		f.next.prev = f.prev
	}
	f.next, f.prev = nil, nil
	l.n--
}

// An OpenFlow is what an operator is shown of a flow. The host is canonical; nothing
// else in it is text that a sandbox chose freely.
type OpenFlow struct {
	ID        string    `json:"id"`
	Sandbox   string    `json:"sandbox"`
	Via       string    `json:"via"`
	Host      string    `json:"host"`
	Port      uint16    `json:"port"`
	Addr      string    `json:"addr,omitempty"` // that was dialled
	Src       string    `json:"src,omitempty"`
	Rule      string    `json:"rule,omitempty"`
	Layer     string    `json:"layer,omitempty"`
	Inspected bool      `json:"inspected,omitempty"`
	PID       int       `json:"pid,omitempty"`
	Began     time.Time `json:"began"`
	Seconds   float64   `json:"seconds"` // since then
}

func (f *Flow) describe() OpenFlow {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.request
	o := OpenFlow{
		ID: f.id.String(), Sandbox: r.Sandbox.Name, Via: string(r.Via), Host: f.gate.canaries.without(r.Destination.Host), Port: r.Destination.Port,
		Rule: f.decision.Rule, Layer: string(f.decision.Layer),
		Inspected: r.TLS != nil && r.TLS.Inspected,
		Began:     f.id.Time().UTC(), Seconds: (time.Since(f.gate.began) - f.began).Seconds(),
	}
	if at := f.dialled; at.IsValid() {
		o.Addr = at.Addr().String()
	}
	if at := f.src; at.IsValid() {
		o.Src = at.String()
	}
	if r.Process != nil {
		o.PID = r.Process.PID
	}
	return o
}
