package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

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

// inForce reports whether a feed decides. What is in shadow is not looked at for its
// age: the bundle there is whatever came last.
func (c *config) inForce(f *feed) bool {
	sources, _ := c.sources()
	return slices.ContainsFunc(sources, func(s policy.RegoSource) bool { return !s.Shadow && s.Bundle == f.Source().URL })
}
