package egress

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/egressd/egressd/policy"

	"github.com/egressd/egressd/record"
)

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

// OpenFlows returns a page of open flows, oldest first: up to most flows that began after the flow with the ID after.
// more reports whether others follow. Pass the zero ID for the first page, and then the ID of the last flow.
func (g *Gate) OpenFlows(after record.ID, most int) (page []OpenFlow, more bool) {
	flows := slices.DeleteFunc(g.openFlows(), func(f *Flow) bool { return f.id <= after })
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

func (f *Flow) describe() OpenFlow {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.request
	o := OpenFlow{
		ID: f.id.String(), Sandbox: r.Sandbox.Name, Via: string(r.Via), Host: f.gate.withoutCanary(r.Destination.Host), Port: r.Destination.Port,
		Rule: f.decision.Rule, Layer: string(f.decision.Layer),
		Inspected: r.TLS != nil && r.TLS.Inspected,
		Began:     f.id.Time().UTC(), Seconds: (time.Since(f.gate.began) - f.began).Seconds(),
	}
	if at := f.dialled.addrPort(); at.IsValid() {
		o.Addr = at.Addr().String()
	}
	if at := f.src.addrPort(); at.IsValid() {
		o.Src = at.String()
	}
	if r.Process != nil {
		o.PID = r.Process.PID
	}
	return o
}

// hostsOf returns the hosts that a sandbox has open flows to.
func (g *Gate) hostsOf(sandbox string) map[string]bool {
	hosts := map[string]bool{}
	for _, f := range g.openFlows() {
		f.mu.Lock()
		if f.request.Sandbox.Name == sandbox {
			hosts[f.request.Destination.Host] = true
		}
		f.mu.Unlock()
	}
	return hosts
}

// IsOpen reports whether there is an open flow with that ID.
func (g *Gate) IsOpen(id record.ID) bool {
	return slices.ContainsFunc(g.openFlows(), func(f *Flow) bool { return f.id == id })
}

// CutFlow cuts an open flow, whose close record then has the outcome "cut", and reports
// whether there was one. The policy is what it was: the sandbox may begin another.
func (g *Gate) CutFlow(id record.ID) bool {
	for _, f := range g.openFlows() {
		if f.id == id {
			f.cut()
			return true
		}
	}
	return false
}

// An OperatorNote is what an operator asked egressd for, or somebody who is none.
type OperatorNote struct {
	Process *policy.Process // who asked, where the kernel says so
	Src     netip.AddrPort  // else where it came from
	Count   int64           // how many requests it stands for; 0 is one
	Note    string
}

// NoteOperator records what was asked for by [KindAdmin]. The record is in the log when it
// returns, and durable when the log is next synced.
func (g *Gate) NoteOperator(o OperatorNote) error {
	g.Settle()
	e := encoder{Encoder: record.Encoder{Line: make([]byte, 0, 256)}}
	e.Open("")
	e.Text("kind", string(record.KindAdmin))
	if o.Count > 1 {
		e.Number("count", o.Count)
	}
	e.AddrPort("src", o.Src)
	e.process(o.Process)
	e.Text("note", o.Note)
	e.Close()
	_, err := g.config.Log.Append(e.Line)
	return err
}
