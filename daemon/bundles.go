package daemon

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego/bundle"
)

// openBundles opens what the configuration has fetched, and fetches what there is
// no good one of: without it, there is no policy.
func (d *Daemon) openBundles(ctx context.Context, c *config.Config) error {
	var open config.Feeds
	if d.Config != c {
		open = d.Config.Feeds
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
func (d *Daemon) adopt(c *config.Config) {
	for _, f := range d.Config.Feeds {
		if !slices.Contains(c.Feeds, f) && f.Stop != nil {
			f.Stop()
		}
	}
	for _, f := range c.Feeds {
		if err := f.Take(); err != nil {
			d.Complain(err)
		}
	}
}

// FollowBundles takes in what is fetched for the policy, until ctx is done. Files are
// not read again, as Serve does: whom this serves may be able to write them.
func (d *Daemon) FollowBundles(ctx context.Context) {
	d.age(ctx)
	for {
		d.poll(ctx)
		select {
		case <-ctx.Done():
			return
		case a := <-d.fetches:
			d.arrive(ctx, a)
		case <-d.ageing():
			d.age(ctx)
		}
	}
}

// A fetched is the result of one fetch.
type fetched struct {
	*bundle.Update
	feed  *config.Feed
	err   error
	taken chan bool // is told whether it was good
}

// poll begins to ask for the bundles that nobody asks for yet, until ctx is done.
func (d *Daemon) poll(ctx context.Context) {
	for _, f := range d.Config.Feeds {
		if f.Stop != nil {
			continue
		}
		polling, stop := context.WithCancel(ctx)
		f.Stop = stop
		wait := time.Duration(0)
		if !f.State().Heard.IsZero() && time.Since(f.State().Heard) < time.Second {
			wait = f.Wait(0) // it came at the start
		}
		d.Serving.Go(func() { d.follows(polling, f, wait) })
	}
}

// pollNow has all bundles asked for at once.
func (d *Daemon) pollNow() {
	for _, f := range d.Config.Feeds {
		select {
		case f.Hurry <- struct{}{}:
		default:
		}
	}
}

// follows asks for a bundle again and again, until ctx is done.
func (d *Daemon) follows(ctx context.Context, f *config.Feed, wait time.Duration) {
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
		case d.fetches <- a:
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
func (d *Daemon) arrive(ctx context.Context, a fetched) {
	f := a.feed
	if !slices.Contains(d.Config.Feeds, f) {
		a.taken <- true // the policy has done without it since
		return
	}
	err := a.err
	if err == nil {
		f.Pending = a.Update
		if a.Newer {
			err = d.renew(ctx, f)
		} else if err := f.Take(); err != nil {
			d.Complain(err)
		}
	}
	if f.Pending = nil; err != nil {
		d.refused(f, err)
	} else {
		d.heard(f)
	}
	d.age(ctx)
	a.taken <- err == nil
}

// renew puts in force what a feed offers, beside all else as it was read last. It reads no file
// and starts no command of a credential, since a sandbox may have changed them. The exception is
// a bundle that is the first to look into TLS: then tls.extra_roots are read.
func (d *Daemon) renew(ctx context.Context, f *config.Feed) (err error) {
	next := d.made
	next.config = d.Config.Renewed()
	if next.policy, err = d.compile(next.config); err != nil {
		return err
	}
	next.policy, next.grants, next.dropped = d.beside(ctx, next.config, next.policy)
	if next.with == nil || !next.config.Inspects() {
		if next.with, err = d.inspection(next.config); err != nil {
			return err
		}
	}
	next.keys = d.keys.forPolicy(d.policy.Digest(), next.policy.Digest())
	why := fmt.Sprintf("bundle %s, revision %q", f.Source().Label(), f.Pending.Bundle.Revision)
	return d.enforce(ctx, &next, "renewed "+d.Path, why)
}

// refused says once why a feed brought nothing good.
func (d *Daemon) refused(f *config.Feed, why error) {
	if err := f.Fail(why); err != nil {
		d.Complain(err)
	}
	note := fmt.Sprintf("bundle %s refused, the last good one stays: %v", f.Source().Label(), why)
	if note == f.Reported {
		return
	}
	f.Reported = note
	d.note(note)
	fmt.Fprintf(d.Talk, "egressd: error: %s\negressd: hint: egressd policy status\n", printable.Text(note))
}

// heard says that a feed which failed does no longer.
func (d *Daemon) heard(f *config.Feed) {
	if f.Reported == "" {
		return
	}
	f.Reported = ""
	note := fmt.Sprintf("bundle %s is fetched again", f.Source().Label())
	d.note(note)
	fmt.Fprintf(d.Talk, "egressd: %s\n", printable.Text(note))
}

func (d *Daemon) note(text string) {
	if err := d.Gate.RejectPolicy(clipped(text)); err != nil {
		d.Complain(fmt.Errorf("record what became of a bundle: %w", err))
	}
}
