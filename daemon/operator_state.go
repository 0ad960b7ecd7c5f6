package daemon

import (
	"cmp"
	"slices"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/logs/sink"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/rego/bundle"
)

// inForce is what the goroutine that reloads has put in force, for others to read. It is
// not changed.
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
func (o *operator) putInForce(p *policy.Policy, c *config.Config, source string) {
	next := inForce{}
	if before := o.now.Load(); before != nil {
		next = *before
	}
	next.policy, next.config, next.since, next.source = p, c, time.Now().UTC(), clipped(source)
	if next.rejected != nil {
		was := *next.rejected
		was.Current = false
		next.rejected = &was
	}
	o.now.Store(&next)
}

// reloaded notes that the files were read again, and what came of it.
func (o *operator) reloaded(err error) {
	before := o.now.Load()
	if before == nil {
		return
	}
	next := *before
	next.reloads++
	if err != nil {
		next.failed++
		next.rejected = &config.Rejection{Time: time.Now().UTC(), Reason: clipped(err.Error()), Current: true}
	}
	o.now.Store(&next)
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

// collect counts what is none of the gate's.
func (o *operator) collect(m *admin.Metrics) {
	now := o.now.Load()
	if now == nil {
		return
	}
	m.Only("egressd_ready", admin.Gauge, "1 while egressd serves by what it knows; the log has its own.", truth(len(o.missing()) == 0))
	m.Only("egressd_policy_in_force_seconds", admin.Gauge, "How long the policy has been in force.", time.Since(now.since).Seconds())
	m.Only("egressd_policy_reloads_total", admin.Counter, "How often the policy was read again.", float64(now.reloads))
	m.Only("egressd_policy_reloads_failed_total", admin.Counter, "How often it could not be put in force.", float64(now.failed))
	o.daemon.grants.collectGrants(m, now)
	bundles := byLabel(now.show().Bundles)
	m.Family("egressd_bundle_stale", admin.Gauge, "1 where a bundle does not count any more, so that everything is denied.")
	for _, b := range bundles {
		m.Sample(truth(b.Stale != ""), "bundle", b.Source)
	}
	m.Family("egressd_bundle_heard_seconds", admin.Gauge, "How long ago the server of a bundle was heard.")
	for _, b := range bundles {
		if !b.Heard.IsZero() {
			m.Sample(time.Since(b.Heard).Seconds(), "bundle", b.Source)
		}
	}
	m.Family("egressd_sink_behind_records", admin.Gauge, "Records that a sink has yet to send, to the second.")
	for _, s := range o.daemon.audit.sinksBehind(now.config) {
		m.Sample(float64(s.behind), "sink", s.name)
	}
}

// byLabel merges bundles with the same label: a label omits the secret parts of a URL. The merged bundle is stale if one
// of them is, and has the oldest time of contact. Prometheus refuses a page with a repeated series.
func byLabel(bundles []bundleState) (all []bundleState) {
	for _, b := range bundles {
		i := slices.IndexFunc(all, func(one bundleState) bool { return one.Source == b.Source })
		if i < 0 {
			all = append(all, b)
			continue
		}
		all[i].Stale = cmp.Or(all[i].Stale, b.Stale)
		if all[i].Heard.IsZero() || !b.Heard.IsZero() && b.Heard.Before(all[i].Heard) {
			all[i].Heard = b.Heard
		}
	}
	return all
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

type sinkBehind struct {
	name   string
	behind int64
}

// sinksBehind reads how far the sinks of the policy are, from the files that they keep.
func (au *auditing) sinksBehind(c *config.Config) (all []sinkBehind) {
	if len(c.File.Audit.Sinks) == 0 {
		return nil
	}
	dir, err := c.AuditDir()
	if err != nil {
		return nil
	}
	states, err := sink.States(dir)
	if err != nil {
		return nil
	}
	written := au.daemon.Log.State().Written
	for _, s := range states {
		if slices.ContainsFunc(c.File.Audit.Sinks, func(one file.Sink) bool { return one.Name == s.Name }) {
			all = append(all, sinkBehind{s.Name, max(0, written-s.Next)})
		}
	}
	return all
}
