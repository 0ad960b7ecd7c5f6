package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/egressd/egressd/bundle"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/policy"
)

// openBundles opens what the configuration has fetched, and fetches what there is
// no good one of: without it, there is no policy.
func (d *daemon) openBundles(ctx context.Context, c *config) error {
	var open feeds
	if d.config != c {
		open = d.config.feeds
	}
	if err := c.openFeeds(open); err != nil {
		return err
	}
	return c.fetch(ctx, func(f *feed) bool {
		_, err := f.bundle()
		return err != nil
	})
}

// compileAtStart makes the first policy. Where the bundles that were kept do not
// make one, those that their servers have now may.
func (d *daemon) compileAtStart(ctx context.Context) (*policy.Policy, error) {
	p, err := d.compile(d.config)
	if err == nil || len(d.config.feeds) == 0 {
		return p, err
	}
	if d.config.fetch(ctx, func(f *feed) bool { return f.offer == nil }) != nil {
		return nil, err
	}
	return d.compile(d.config)
}

// adopt notes that the policy in force is made of the bundles of c.
func (d *daemon) adopt(c *config) {
	for _, f := range d.config.feeds {
		if !slices.Contains(c.feeds, f) && f.stop != nil {
			f.stop()
		}
	}
	for _, f := range c.feeds {
		if err := f.take(); err != nil {
			d.complain(err)
		}
	}
}

// An arrival is the end of one fetch.
type arrival struct {
	*bundle.Arrival
	feed  *feed
	err   error
	taken chan bool // is told whether it was good
}

// poll begins to ask for the bundles that nobody asks for yet, until ctx is done.
func (d *daemon) poll(ctx context.Context) {
	for _, f := range d.config.feeds {
		if f.stop != nil {
			continue
		}
		polling, stop := context.WithCancel(ctx)
		f.stop = stop
		wait := time.Duration(0)
		if !f.State().Heard.IsZero() && time.Since(f.State().Heard) < time.Second {
			wait = f.Wait(0) // it came at the start
		}
		d.serving.Go(func() { d.follows(polling, f, wait) })
	}
}

// pollNow has all bundles asked for at once.
func (d *daemon) pollNow() {
	for _, f := range d.config.feeds {
		select {
		case f.hurry <- struct{}{}:
		default:
		}
	}
}

// follows asks for a bundle again and again, until ctx is done.
func (d *daemon) follows(ctx context.Context, f *feed, wait time.Duration) {
	for failures := 0; ; wait = f.Wait(failures) {
		again := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			again.Stop()
			return
		case <-again.C:
		case <-f.hurry:
		}
		a := arrival{feed: f, taken: make(chan bool, 1)}
		if a.Arrival, a.err = f.Fetch(ctx); ctx.Err() != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case d.arrivals <- a:
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
func (d *daemon) arrive(ctx context.Context, a arrival) {
	f := a.feed
	if !slices.Contains(d.config.feeds, f) {
		a.taken <- true // the policy has done without it since
		return
	}
	err := a.err
	if err == nil {
		f.offer = a.Arrival
		if a.Newer {
			err = d.renew(ctx, f)
		} else if err := f.take(); err != nil {
			d.complain(err)
		}
	}
	if f.offer = nil; err != nil {
		d.refused(f, err)
	} else {
		d.heard(f)
	}
	d.age(ctx)
	a.taken <- err == nil
}

// renew puts in force what a feed offers, beside the policy file as it was read
// last: a bundle does not wait for a file that somebody edits.
func (d *daemon) renew(ctx context.Context, f *feed) error {
	next := &config{path: d.config.path, text: d.config.text, file: d.config.file, who: d.config.who, organisation: d.config.organisation, feeds: d.config.feeds}
	made, err := d.make(ctx, next)
	if err != nil {
		return err
	}
	why := fmt.Sprintf("bundle %s, revision %q", f.Source().Label(), f.offer.Bundle.Revision)
	return d.enforce(ctx, made, "renewed "+d.path, why)
}

// refused says once why a feed brought nothing good.
func (d *daemon) refused(f *feed, why error) {
	if err := f.Fail(why); err != nil {
		d.complain(err)
	}
	note := fmt.Sprintf("bundle %s refused, the last good one stays: %v", f.Source().Label(), why)
	if note == f.said {
		return
	}
	f.said = note
	d.note(note)
	fmt.Fprintf(d.talk, "egressd: error: %s\negressd: hint: egressd policy status\n", cli.Printable(note))
}

// heard says that a feed which failed does no longer.
func (d *daemon) heard(f *feed) {
	if f.said == "" {
		return
	}
	f.said = ""
	note := fmt.Sprintf("bundle %s is fetched again", f.Source().Label())
	d.note(note)
	fmt.Fprintf(d.talk, "egressd: %s\n", cli.Printable(note))
}

func (d *daemon) note(text string) {
	if err := d.gate.RejectPolicy(clipped(text)); err != nil {
		d.complain(fmt.Errorf("record what became of a bundle: %w", err))
	}
}
