package daemon

import (
	"cmp"
	"slices"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/policystatus"
	"github.com/egressd/egressd/logs/sink"
	"github.com/egressd/egressd/policy/file"
)

// collect adds the metrics that are none of the gate's.
func (l *adminListener) collect(m *admin.Metrics) {
	now := l.daemon.current.Load()
	if now == nil {
		return
	}
	m.Only("egressd_ready", admin.Gauge, "1 while egressd serves by what it knows; the log has its own.", truth(len(l.missing()) == 0))
	m.Only("egressd_policy_in_force_seconds", admin.Gauge, "How long the policy has been in force.", time.Since(now.since).Seconds())
	m.Only("egressd_policy_reloads_total", admin.Counter, "How often the policy was read again.", float64(now.reloads))
	m.Only("egressd_policy_reloads_failed_total", admin.Counter, "How often it could not be put in force.", float64(now.failed))
	l.daemon.grants.collectGrants(m, now)
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
	for _, s := range l.daemon.audit.sinksBehind(now.config) {
		m.Sample(float64(s.behind), "sink", s.name)
	}
}

// byLabel merges bundles with the same label: a label omits the secret parts of a URL. The merged bundle is stale if one
// of them is, and has the oldest time of contact. Prometheus refuses a page with a repeated series.
func byLabel(bundles []policystatus.Bundle) (all []policystatus.Bundle) {
	for _, b := range bundles {
		i := slices.IndexFunc(all, func(one policystatus.Bundle) bool { return one.Source == b.Source })
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
