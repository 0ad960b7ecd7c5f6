package doctor

import (
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/policystatus"
)

// bundleFindings are about the bundles of the policy, as egressd keeps them on disk. It asks no server.
func bundleFindings(c *config.Config) (all []Finding) {
	const check = "bundles"
	for _, b := range policystatus.Bundles(c) {
		at := b.Source
		if b.Shadow {
			at += " (in shadow)"
		}
		switch {
		case b.Stale != "" && !b.Shadow:
			all = append(all, Finding{check, at + " is stale, so that everything is denied: " + b.Stale, "look after the server of bundles, or sign a new one: egressd policy build --sign KEY"})
		case b.Error != "":
			all = append(all, Finding{check, at + ": " + b.Error, "correct that at the server of bundles; egressd policy show"})
		case b.Heard.IsZero():
			all = append(all, Finding{Check: check, Says: at + " has revision " + b.Revision})
		default:
			all = append(all, Finding{Check: check, Says: at + " has revision " + b.Revision + ", and its server was heard at " + b.Heard.Local().Format(time.DateTime)})
		}
	}
	return all
}
