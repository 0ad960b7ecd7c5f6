package daemon

import (
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/rego/bundle"
)

// A currentPolicy is the policy in force and what came of reloads; nil before the first. The goroutine that reloads
// stores the next one, and any goroutine may load it.
type currentPolicy struct{ atomic.Pointer[inForce] }

// inForce is one state of a currentPolicy. It is not changed.
type inForce struct {
	policy   *policy.Policy
	config   *config.Config
	since    time.Time
	source   string
	rejected *config.Rejection
	reloads  int // that were asked for, or that changes brought
	failed   int // of them

	grants  []*grant // beside the file
	granted int      // how many there were
}

// A policyState describes the policy in force with the names of egressd policy status, without the parts that come from
// the log.
type policyState struct {
	OK       bool              `json:"ok"`
	Running  bool              `json:"running"`
	Policy   string            `json:"policy,omitempty"`
	Since    time.Time         `json:"since,omitzero"`
	Source   string            `json:"source,omitempty"`
	Rejected *config.Rejection `json:"rejected,omitempty"`
	Upstream *upstreamState    `json:"upstream,omitempty"`
	Bundles  []bundleState     `json:"bundles"`
}

// An upstreamState is the proxy that egressd connects through.
type upstreamState struct {
	Proxy   string `json:"proxy"`
	ByName  bool   `json:"by_name"`
	GivesUp string `json:"gives_up,omitempty"`
}

func upstreamOf(p *file.UpstreamProxy) *upstreamState {
	if p == nil {
		return nil
	}
	s := &upstreamState{Proxy: p.URL(), ByName: p.ByName}
	if p.ByName {
		s.GivesUp = p.GivesUp()
	}
	return s
}

type bundleState struct {
	Source   string    `json:"source"`
	Revision string    `json:"revision,omitempty"`
	Signed   bool      `json:"signed"`
	Issued   time.Time `json:"issued,omitzero"`
	Expires  time.Time `json:"expires,omitzero"`
	Fetched  time.Time `json:"fetched,omitzero"`
	Heard    time.Time `json:"heard,omitzero"`
	Tried    time.Time `json:"tried,omitzero"`
	Stale    string    `json:"stale,omitempty"`
	Error    string    `json:"error,omitempty"`
}

// putInForce notes a policy that counts from now on.
func (c *currentPolicy) putInForce(p *policy.Policy, from *config.Config, source string) {
	next := inForce{}
	if before := c.Load(); before != nil {
		next = *before
	}
	next.policy, next.config, next.since, next.source = p, from, time.Now().UTC(), clipped(source)
	if next.rejected != nil {
		was := *next.rejected
		was.Current = false
		next.rejected = &was
	}
	c.Store(&next)
}

// reloaded notes that the files were read again, and what came of it.
func (c *currentPolicy) reloaded(err error) {
	before := c.Load()
	if before == nil {
		return
	}
	next := *before
	next.reloads++
	if err != nil {
		next.failed++
		next.rejected = &config.Rejection{Time: time.Now().UTC(), Reason: clipped(err.Error()), Current: true}
	}
	c.Store(&next)
}

// countGranted counts lines that were granted for a while.
func (c *currentPolicy) countGranted(n int) {
	now := *c.Load()
	now.granted += n
	c.Store(&now)
}

func (n *inForce) show() policyState {
	s := policyState{Running: true, Bundles: []bundleState{}}
	if n == nil {
		return s
	}
	s.Policy, s.Since, s.Source, s.Rejected = n.policy.Digest(), n.since, n.source, n.rejected
	s.Upstream = upstreamOf(n.config.File.Upstream.Proxy)
	s.OK = n.rejected == nil || !n.rejected.Current
	for _, f := range n.config.Feeds {
		b := stateOfFeed(f.Feed)
		s.OK = s.OK && b.Stale == "" && b.Error == ""
		s.Bundles = append(s.Bundles, b)
	}
	for _, l := range n.config.Lapses {
		b := bundleState{Source: l.Label, Expires: l.At}
		if !time.Now().Before(l.At) {
			b.Stale, s.OK = l.Why(), false
		}
		s.Bundles = append(s.Bundles, b)
	}
	return s
}

func stateOfFeed(f *bundle.Feed) bundleState {
	known := f.State()
	b := bundleState{Source: f.Source().Label(), Fetched: known.Fetched, Heard: known.Heard, Tried: known.Tried, Error: known.Error, Stale: f.Stale()}
	good, err := f.Good()
	switch {
	case err == nil:
		b.Revision, b.Signed, b.Issued, b.Expires = good.Revision, good.Signed, good.Issued, good.Expires
	case b.Error == "":
		b.Error = err.Error()
	}
	return b
}
