package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego/bundle"
)

// A bundleFollower fetches the bundles of the policy, and puts what they hold in force.
type bundleFollower struct {
	daemon  *Daemon
	fetches chan fetched // what was fetched
}

// openBundles opens what the configuration has fetched, and fetches what there is
// no good one of: without it, there is no policy.
func (bs *bundleFollower) openBundles(ctx context.Context, c *config.Config) error {
	var open config.Feeds
	if bs.daemon.Config != c {
		open = bs.daemon.Config.Feeds
	}
	if err := c.OpenFeeds(open); err != nil {
		return err
	}
	return c.Fetch(ctx, func(f *config.Feed) bool {
		_, err := f.Bundle()
		return err != nil
	})
}

// compileAtStart compiles the first policy. If the stored bundles do not compile, it fetches current ones.
func (d *Daemon) compileAtStart(ctx context.Context) (*policy.Policy, error) {
	p, err := d.compile(d.Config)
	if err == nil || len(d.Config.Feeds) == 0 {
		return p, err
	}
	if d.Config.Fetch(ctx, func(f *config.Feed) bool { return f.Pending == nil }) != nil {
		return nil, err
	}
	return d.compile(d.Config)
}

// adopt notes that the policy in force is made of the bundles of c.
func (bs *bundleFollower) adopt(c *config.Config) {
	for _, f := range bs.daemon.Config.Feeds {
		if !slices.Contains(c.Feeds, f) && f.Stop != nil {
			f.Stop()
		}
	}
	for _, f := range c.Feeds {
		if err := f.Take(); err != nil {
			bs.daemon.Complain(err)
		}
	}
}

// Follow takes in fetched bundles and temporary grants until ctx is done. It does not read files again, as Serve does: the
// program that this daemon serves may be able to write them.
func (d *Daemon) Follow(ctx context.Context) {
	d.bundles.age(ctx)
	for {
		d.bundles.poll(ctx)
		select {
		case <-ctx.Done():
			return
		case a := <-d.bundles.fetches:
			d.bundles.arrive(ctx, a)
		case <-d.bundles.ageing():
			d.bundles.age(ctx)
		case do := <-d.grants.turns:
			do(ctx)
		case <-d.grants.ends.come:
			d.grants.expire(ctx)
		case <-d.observing.ends.come:
			d.observing.expire(ctx)
		}
	}
}

// Grants changes what counts for a while. Somebody has to follow.
func (d *Daemon) Grants() admin.Granting { return grantsAPI{&d.grants} }

// A fetched is the result of one fetch.
type fetched struct {
	*bundle.Update
	feed  *config.Feed
	err   error
	taken chan bool // is told whether the server was heard
}

// poll begins to ask for the bundles that nobody asks for yet, until ctx is done.
func (bs *bundleFollower) poll(ctx context.Context) {
	for _, f := range bs.daemon.Config.Feeds {
		if f.Stop != nil {
			continue
		}
		polling, stop := context.WithCancel(ctx)
		f.Stop = stop
		wait := time.Duration(0)
		if !f.State().Heard.IsZero() && time.Since(f.State().Heard) < time.Second {
			wait = f.Wait(0) // it came at the start
		}
		bs.daemon.Serving.Go(func() { bs.follows(polling, f, wait) })
	}
}

// pollNow has all bundles asked for at once.
func (bs *bundleFollower) pollNow() {
	for _, f := range bs.daemon.Config.Feeds {
		select {
		case f.Hurry <- struct{}{}:
		default:
		}
	}
}

// follows asks for a bundle again and again, until ctx is done.
func (bs *bundleFollower) follows(ctx context.Context, f *config.Feed, wait time.Duration) {
	for failures := 0; ; wait = f.Wait(failures) {
		again := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			again.Stop()
			return
		case <-again.C:
		case <-f.Hurry:
		}
		a := fetched{feed: f, taken: make(chan bool, 1)}
		if a.Update, a.err = f.Fetch(ctx); ctx.Err() != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case bs.fetches <- a:
		}
		select {
		case <-ctx.Done():
			return
		case good := <-a.taken:
			if failures++; good {
				failures = 0
			}
		}
	}
}

// arrive puts what was fetched in force, or says why it is not.
func (bs *bundleFollower) arrive(ctx context.Context, a fetched) {
	f := a.feed
	if !slices.Contains(bs.daemon.Config.Feeds, f) {
		a.taken <- true // the policy has done without it since
		return
	}
	err := a.err
	if err == nil {
		f.Pending = a.Update
		if a.Newer {
			err = bs.renew(ctx, f)
		} else if err := f.Take(); err != nil {
			bs.daemon.Complain(err)
		}
	}
	if f.Pending = nil; err != nil {
		bs.refused(f, err)
	} else {
		bs.heard(f)
	}
	bs.age(ctx)
	a.taken <- err == nil || errors.Is(err, bundle.ErrOlder) // who was heard is asked again at refresh
}

// renew puts in force what a feed offers, beside all else as it was read last. It reads no file
// and starts no command of a credential, since a sandbox may have changed them. The exception is
// a bundle that is the first to look into TLS: then tls.extra_roots are read.
func (bs *bundleFollower) renew(ctx context.Context, f *config.Feed) (err error) {
	next := bs.daemon.reloads.made
	next.config = bs.daemon.Config.Renewed()
	if next.policy, err = bs.daemon.compile(next.config); err != nil {
		return err
	}
	next.policy, next.grants, next.dropped = bs.daemon.grants.beside(ctx, next.config, next.policy)
	if next.with == nil || !next.config.Inspects() {
		if next.with, err = bs.daemon.inspection(next.config); err != nil {
			return err
		}
	}
	next.keys = bs.daemon.keys.forPolicy(bs.daemon.policy.Digest(), next.policy.Digest())
	why := fmt.Sprintf("bundle %s, revision %q", f.Source().Label(), f.Pending.Bundle.Revision)
	return bs.daemon.reloads.enforce(ctx, &next, "renewed "+bs.daemon.Path, why)
}

// refused says once why a feed brought nothing good.
func (bs *bundleFollower) refused(f *config.Feed, why error) {
	if err := f.Fail(why); err != nil {
		bs.daemon.Complain(err)
	}
	note := fmt.Sprintf("bundle %s refused, the last good one stays: %v", f.Source().Label(), why)
	if note == f.Reported {
		return
	}
	f.Reported = note
	bs.note(note)
	hint.Write(bs.daemon.Talk, errors.New(note), "egressd policy show")
}

// heard says that a feed which failed does no longer.
func (bs *bundleFollower) heard(f *config.Feed) {
	if f.Reported == "" {
		return
	}
	f.Reported = ""
	note := fmt.Sprintf("bundle %s is fetched again", f.Source().Label())
	bs.note(note)
	fmt.Fprintf(bs.daemon.Talk, "egressd: %s\n", printable.Text(note))
}

func (bs *bundleFollower) note(text string) {
	if err := bs.daemon.Gate.RejectPolicy(clipped(text)); err != nil {
		bs.daemon.Complain(fmt.Errorf("record what became of a bundle: %w", err))
	}
}

// stale returns why everything is denied while a bundle is stale, one reason for each such bundle.
func (n *inForce) stale() (why []string) {
	for _, f := range n.config.Feeds {
		if one := f.Stale(); one != "" && n.config.InForce(f) {
			why = append(why, "a bundle of the policy is stale, so that everything is denied: "+one)
		}
	}
	for _, l := range n.config.Lapses {
		if !time.Now().Before(l.At) {
			why = append(why, "a bundle of the policy is stale, so that everything is denied: "+l.Why())
		}
	}
	return why
}

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
