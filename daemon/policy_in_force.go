package daemon

import (
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/policystatus"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
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

func upstreamOf(p *file.UpstreamProxy) *policystatus.UpstreamState {
	if p == nil {
		return nil
	}
	s := &policystatus.UpstreamState{Proxy: p.URL(), ByName: p.ByName}
	if p.ByName {
		s.GivesUp = p.GivesUp()
	}
	return s
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

// show describes the policy in force, without the parts that come from the log.
func (n *inForce) show() policystatus.Status {
	s := policystatus.Status{Running: true, Bundles: []policystatus.Bundle{}}
	if n == nil {
		return s
	}
	s.Policy, s.Since, s.Source, s.Rejected = n.policy.Digest(), n.since, n.source, n.rejected
	s.Observing = n.policy.Observing()
	s.Upstream = upstreamOf(n.config.File.Upstream.Proxy)
	s.OK = n.rejected == nil || !n.rejected.Current
	for _, f := range n.config.Feeds {
		b := policystatus.OfFeed(f.Feed)
		s.OK = s.OK && b.Stale == "" && b.Error == ""
		s.Bundles = append(s.Bundles, b)
	}
	for _, l := range n.config.Lapses {
		b := policystatus.Bundle{Source: l.Label, Expires: l.At}
		if !time.Now().Before(l.At) {
			b.Stale, s.OK = l.Why(), false
		}
		s.Bundles = append(s.Bundles, b)
	}
	return s
}
