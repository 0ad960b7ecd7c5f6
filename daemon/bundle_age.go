package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/egressd/egressd/internal/printable"
)

// age has the flows that are open decided again where a bundle has become stale, or
// is no longer, and says so.
func (bs *bundleFollower) age(ctx context.Context) {
	for _, f := range bs.daemon.Config.Feeds {
		if bs.daemon.Config.InForce(f) {
			bs.turn(ctx, f.Source().Label(), f.Stale(), &f.ReportedStale)
		}
	}
	for _, l := range bs.daemon.Config.Lapses {
		why := ""
		if !time.Now().Before(l.At) {
			why = l.Why()
		}
		bs.turn(ctx, l.Label, why, &l.ReportedStale)
	}
}

// turn says that a bundle is stale, and why, or with an empty why that it is not,
// unless that was recorded.
func (bs *bundleFollower) turn(ctx context.Context, label, why string, recorded *bool) {
	stale := why != ""
	if *recorded == stale {
		return
	}
	note := fmt.Sprintf("bundle %s counts again", label)
	if stale {
		note = fmt.Sprintf("bundle %s is stale, and everything is denied until there is a good one: %s", label, why)
	}
	again := *bs.daemon.policy // the same one, and to the gate another
	if err := bs.daemon.Gate.SetPolicy(ctx, &again, note); err != nil {
		bs.daemon.Complain(fmt.Errorf("record the age of a bundle: %w", err)) // and it is tried again
		return
	}
	*recorded = stale
	fmt.Fprintf(bs.daemon.Talk, "egressd: warning: %s\n", printable.Text(note))
}

// lookEvery is how often the age of the bundles is looked at, at least: the
// machine may have slept.
const lookEvery = 10 * time.Second

// ageing tells when the age of the bundles is to be looked at; never where none
// has one.
func (bs *bundleFollower) ageing() <-chan time.Time {
	wait := lookEvery
	soon := func(at time.Time) {
		if left := time.Until(at); left > 0 {
			wait = min(wait, left)
		}
	}
	for _, f := range bs.daemon.Config.Feeds {
		soon(f.Lapse())
	}
	for _, l := range bs.daemon.Config.Lapses {
		soon(l.At)
	}
	if len(bs.daemon.Config.Feeds)+len(bs.daemon.Config.Lapses) == 0 {
		return nil
	}
	return time.After(max(wait, 10*time.Millisecond))
}
