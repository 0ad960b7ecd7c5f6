package daemon

import (
	"cmp"
	"slices"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/policystatus"
	"github.com/egressd/egressd/internal/version"
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
	build := version.This()
	m.Family("egressd_build_info", admin.Gauge, "1 for the version that runs.")
	m.Sample(1, "version", build.Version, "commit", build.Commit, "goversion", build.Go)
	m.Family("egressd_policy_info", admin.Gauge, "1 for the policy in force. rules is the same wherever the same rules hold.")
	m.Sample(1, "rules", now.policy.RulesID(), "revision", now.policy.Revision())
	m.Only("egressd_policy_in_force_seconds", admin.Gauge, "How long the policy has been in force.", time.Since(now.since).Seconds())
	m.Only("egressd_policy_reloads_total", admin.Counter, "How often the policy was read again.", float64(now.reloads))
	m.Only("egressd_policy_reloads_failed_total", admin.Counter, "How often it could not be put in force.", float64(now.failed))
	l.daemon.grants.collectGrants(m, now)
	m.Family("egressd_observing", admin.Gauge, "1 while everything public passes that no rule is about, for a sandbox or, with an empty label, for everybody.")
	for _, o := range now.policy.Observing() {
		m.Sample(1, "sandbox", o.Sandbox)
	}
	l.daemon.notifying.collect(m)
	bundles := byLabel(now.show().Bundles)
	m.Family("egressd_bundle_stale", admin.Gauge, "1 where a bundle does not count any more, so that everything is denied.")
	for _, b := range bundles {
		m.Sample(truth(b.Stale != ""), "bundle", b.Source)
	}
	m.Family("egressd_bundle_failing", admin.Gauge, "1 if the last attempt to fetch a bundle brought nothing that may count.")
	for _, b := range bundles {
		m.Sample(truth(b.Error != ""), "bundle", b.Source)
	}
	m.Family("egressd_bundle_info", admin.Gauge, "1 for the revision of each bundle.")
	for _, b := range bundles {
		m.Sample(1, "bundle", b.Source, "revision", b.Revision)
	}
	m.Family("egressd_bundle_heard_seconds", admin.Gauge, "How long ago the server of a bundle was heard.")
	for _, b := range bundles {
		if !b.Heard.IsZero() {
			m.Sample(time.Since(b.Heard).Seconds(), "bundle", b.Source)
		}
	}
	m.Family("egressd_sink_behind_records", admin.Gauge, "Records that a sink has yet to send, to the second.")
	sinks := l.daemon.audit.sinkStates(now.config)
	written := l.daemon.Log.State().Written
	for i := range sinks {
		m.Sample(float64(max(0, written-sinks[i].Next)), "sink", sinks[i].Name)
	}
	for _, family := range []struct {
		name, help, kind string
		value            func(*sink.State) float64
	}{
		{"egressd_sink_refused_records", "Records that a receiver refuses, and that are sent again.", admin.Gauge, func(s *sink.State) float64 { return float64(len(s.Aside)) }},
		{"egressd_sink_rejected_records_total", "Records that a receiver threw away after it had accepted their batch.", admin.Counter, func(s *sink.State) float64 { return float64(s.Rejected) }},
		{"egressd_sink_missed_records_total", "Records that were removed from the log before they were sent.", admin.Counter, func(s *sink.State) float64 { return float64(s.Missed) }},
		{"egressd_sink_failing", "1 if the last attempt to send failed.", admin.Gauge, func(s *sink.State) float64 { return truth(s.Failing()) }},
		{"egressd_sink_lossy", "1 if nothing tells whether records arrive, as with UDP.", admin.Gauge, func(s *sink.State) float64 { return truth(s.Lossy) }},
	} {
		m.Family(family.name, family.kind, family.help)
		for i := range sinks {
			m.Sample(family.value(&sinks[i]), "sink", sinks[i].Name)
		}
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
		all[i].Stale, all[i].Error = cmp.Or(all[i].Stale, b.Stale), cmp.Or(all[i].Error, b.Error)
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

// sinkStates reads the states of the policy's sinks from the files that they keep.
func (au *auditing) sinkStates(c *config.Config) []sink.State {
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
	return slices.DeleteFunc(states, func(s sink.State) bool {
		return !slices.ContainsFunc(c.File.Audit.Sinks, func(one file.Sink) bool { return one.Name == s.Name })
	})
}
