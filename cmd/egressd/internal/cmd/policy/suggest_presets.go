package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
)

// collections are presets that repeat the hosts of many others. They are not proposed: the others open less.
var collections = []string{"daytona-essential", "devcontainer", "starter"}

// presetsOf returns for each destination the preset that allows it. Of several presets it is the one that allows most of
// all destinations. A destination that none allows is not in the map.
func presetsOf(all []*logs.LearnedDestination) (map[*logs.LearnedDestination]string, error) {
	has := map[string][]*logs.LearnedDestination{}
	for _, name := range file.Presets() {
		if slices.Contains(collections, name) {
			continue
		}
		rules, err := file.PresetRules(name)
		if err != nil {
			return nil, err
		}
		for _, l := range all {
			to, err := policy.ParseDestination(l.Pattern.String())
			if err == nil && slices.ContainsFunc(rules, func(r policy.Rule) bool { return r.Pattern.MatchesName(to.Host, to.Port) }) {
				has[name] = append(has[name], l)
			}
		}
	}
	of := map[*logs.LearnedDestination]string{}
	byMost := func(a, b string) int { return cmp.Or(cmp.Compare(len(has[b]), len(has[a])), cmp.Compare(a, b)) }
	for _, name := range slices.SortedFunc(maps.Keys(has), byMost) {
		for _, l := range has[name] {
			if of[l] == "" {
				of[l] = name
			}
		}
	}
	return of, nil
}

// presetLines proposes presets in comments: each allows more hosts than the lines that it replaces.
func presetLines(all []*logs.LearnedDestination, of map[*logs.LearnedDestination]string) string {
	hosts := map[string][]string{}
	for _, l := range all {
		if name := of[l]; name != "" {
			hosts[name] = append(hosts[name], l.Pattern.String())
		}
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		text, rest := slices.Sorted(slices.Values(hosts[name])), ""
		if len(text) > presetHosts {
			text, rest = text[:presetHosts], fmt.Sprintf(" and %d more", len(text)-presetHosts)
		}
		fmt.Fprintf(&b, "# The preset %s has %s%s, and other hosts: presets: [%s], in place of %s.\n", name, strings.Join(text, ", "), rest, name,
			quantity.Plural(len(hosts[name]), "line"))
	}
	return b.String()
}

const presetHosts = 3 // that a line of presetLines names

// collectors are registered domains of services that programs report to.
var collectors = []string{
	"amplitude.com", "bugsnag.com", "datadoghq.com", "datadoghq.eu", "exp-tas.com", "google-analytics.com", "honeycomb.io", "launchdarkly.com",
	"mixpanel.com", "newrelic.com", "nr-data.net", "posthog.com", "segment.com", "segment.io", "sentry.io", "statsigapi.net",
}

// telemetry warns of a destination whose name says that programs report to it.
func telemetry(l *logs.LearnedDestination) string {
	to, err := policy.ParseDestination(l.Pattern.String())
	if err != nil {
		return ""
	}
	named := strings.Contains(to.Host, "telemetry") || slices.ContainsFunc(strings.Split(to.Host, "."), func(label string) bool {
		return label == "statsig" || label == "sentry" || label == "analytics"
	})
	if !named && !slices.Contains(collectors, policy.Registrable(to.Host)) {
		return ""
	}
	return l.Pattern.String() + " looks like telemetry, without which most programs run"
}
