package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/egressd/egressd/bundle"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

// feeds are the bundles that a policy has fetched. They belong to the goroutine
// that reloads.
type feeds []*feed

// A feed is one of them.
type feed struct {
	*bundle.Feed
	offer *bundle.Arrival    // what is being put in force in place of the last good one; nil for none
	said  string             // what was recorded of it last, while it fails
	stale bool               // that was recorded
	stop  context.CancelFunc // of its polling; nil where it was not begun
	hurry chan struct{}      // has it be asked for now
}

// bundle is what the policy is to be made of.
func (f *feed) bundle() (*rego.Bundle, error) {
	if f.offer != nil {
		return f.offer.Bundle, nil
	}
	return f.Good()
}

// take makes what was offered the last good one.
func (f *feed) take() error {
	offer := f.offer
	if f.offer = nil; offer == nil {
		return nil
	}
	return f.Accept(offer)
}

func (all feeds) find(s *bundle.Source) *feed {
	for _, f := range all {
		if f.Source().Same(s) {
			return f
		}
	}
	return nil
}

// bundlesDir is where the last good bundles are kept.
func bundlesDir() (string, error) {
	if os.Geteuid() == 0 && os.Getenv("XDG_STATE_HOME") == "" {
		return "/var/lib/egressd/bundles", nil
	}
	places := userPlaces("XDG_STATE_HOME", ".local/state", "bundles")
	if len(places) == 0 {
		return "", errors.New("neither XDG_STATE_HOME nor HOME is set, so there is no folder to keep bundles in")
	}
	return places[0], nil
}

// feed returns the feed of a bundle: that of the daemon, or what one has left on
// disk.
func (c *config) feed(s *policy.RegoSource) (*feed, error) {
	from, err := c.bundleSource(s)
	if err != nil {
		return nil, err
	}
	if f := c.feeds.find(&from); f != nil {
		return f, nil
	}
	folder, err := bundlesDir()
	if err != nil {
		return nil, err
	}
	owner, err := c.auditDir() // which no two daemons share
	if err != nil {
		return nil, err
	}
	f, err := bundle.Open(folder, owner, from)
	return &feed{Feed: f, hurry: make(chan struct{}, 1)}, err
}

// openFeeds opens what the configuration has fetched, where it is not open yet.
func (c *config) openFeeds(open feeds) error {
	c.feeds = open
	var all feeds
	sources, at := c.sources()
	for i := range sources {
		s := &sources[i]
		if !s.Fetched() {
			continue
		}
		f, err := c.feed(s)
		if err != nil {
			return cli.Misused(fmt.Errorf("%s: %w", at[i], err), "correct rego in "+c.path)
		}
		if all.find(f.Source()) != nil {
			continue
		}
		if err := f.Private(); err != nil {
			return cli.Failed(err, "egressd policy status, once that is as it should be")
		}
		if slices.ContainsFunc(all, func(other *feed) bool { return other.Source().Shares(f.Source()) }) {
			err := fmt.Errorf("rego[%d]: the bundle %s is there already, with another ca, token_file, refresh or max_age; say the same of it", i, f.Source().Label())
			return cli.Misused(err, "correct rego in "+c.path)
		}
		all = append(all, f)
	}
	c.feeds = all
	return nil
}

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

// fetch has each of the feeds that are wanted offer what its server has, all at a
// time.
func (c *config) fetch(ctx context.Context, wanted func(*feed) bool) error {
	failures := make([]error, len(c.feeds))
	var fetching sync.WaitGroup
	for i, f := range c.feeds {
		if !wanted(f) {
			continue
		}
		fetching.Go(func() {
			if f.offer, failures[i] = f.Fetch(ctx); failures[i] != nil {
				failures[i] = errors.Join(fmt.Errorf("bundle %s: %w", f.Source().Label(), failures[i]), f.Fail(failures[i]))
			}
		})
	}
	fetching.Wait()
	if err := errors.Join(failures...); err != nil {
		return cli.Failed(err, "correct that, or rego in "+c.path+"; without a bundle there is no policy")
	}
	return nil
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
