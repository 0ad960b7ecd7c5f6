package config

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
	"github.com/egressd/egressd/rego/bundle"
)

// Feeds are the bundles that a policy has fetched. They belong to the goroutine
// that reloads.
type Feeds []*Feed

// A Feed is one of them.
type Feed struct {
	*bundle.Feed
	Offer     *bundle.Update     // what is being put in force in place of the last good one; nil for none
	Said      string             // what was recorded of it last, while it fails
	SaidStale bool               // that was recorded
	Stop      context.CancelFunc // of its polling; nil where it was not begun
	Hurry     chan struct{}      // has it be asked for now
}

// Bundle is what the policy is to be made of.
func (f *Feed) Bundle() (*rego.Bundle, error) {
	if f.Offer != nil {
		return f.Offer.Bundle, nil
	}
	return f.Good()
}

// Take makes what was offered the last good one.
func (f *Feed) Take() error {
	offer := f.Offer
	if f.Offer = nil; offer == nil {
		return nil
	}
	return f.Accept(offer)
}

func (all Feeds) find(s *bundle.Source) *Feed {
	for _, f := range all {
		if f.Source().Same(s) {
			return f
		}
	}
	return nil
}

// Feed returns the feed of a bundle: that of the daemon, or what one has left on
// disk.
func (c *Config) Feed(s *policy.RegoSource) (*Feed, error) {
	from, err := c.bundleSource(s)
	if err != nil {
		return nil, err
	}
	if f := c.Feeds.find(&from); f != nil {
		return f, nil
	}
	folder, err := BundlesDir()
	if err != nil {
		return nil, err
	}
	owner, err := c.AuditDir() // which no two daemons share
	if err != nil {
		return nil, err
	}
	f, err := bundle.Open(folder, owner, from)
	return &Feed{Feed: f, Hurry: make(chan struct{}, 1)}, err
}

// OpenFeeds opens what the configuration has fetched, where it is not open yet.
func (c *Config) OpenFeeds(open Feeds) error {
	c.Feeds = open
	var all Feeds
	sources, at := c.Sources()
	for i := range sources {
		s := &sources[i]
		if !s.Fetched() {
			continue
		}
		f, err := c.Feed(s)
		if err != nil {
			return hint.Misused(fmt.Errorf("%s: %w", at[i], err), "correct rego in "+c.Path)
		}
		if all.find(f.Source()) != nil {
			continue
		}
		if err := f.Private(); err != nil {
			return hint.Failed(err, "egressd policy status, once that is as it should be")
		}
		if slices.ContainsFunc(all, func(other *Feed) bool { return other.Source().SameStore(f.Source()) }) {
			err := fmt.Errorf("rego[%d]: the bundle %s is there already, with another ca, token_file, refresh or max_age; say the same of it", i, f.Source().Label())
			return hint.Misused(err, "correct rego in "+c.Path)
		}
		all = append(all, f)
	}
	c.Feeds = all
	return nil
}

// Fetch has each of the feeds that are wanted offer what its server has, all at a
// time.
func (c *Config) Fetch(ctx context.Context, wanted func(*Feed) bool) error {
	failures := make([]error, len(c.Feeds))
	var fetching sync.WaitGroup
	for i, f := range c.Feeds {
		if !wanted(f) {
			continue
		}
		fetching.Go(func() {
			if f.Offer, failures[i] = f.Fetch(ctx); failures[i] != nil {
				failures[i] = errors.Join(fmt.Errorf("bundle %s: %w", f.Source().Label(), failures[i]), f.Fail(failures[i]))
			}
		})
	}
	fetching.Wait()
	if err := errors.Join(failures...); err != nil {
		return hint.Failed(err, "correct that, or rego in "+c.Path+"; without a bundle there is no policy")
	}
	return nil
}

// InForce reports whether a feed decides. What is in shadow is not looked at for its
// age: the bundle there is whatever came last.
func (c *Config) InForce(f *Feed) bool {
	sources, _ := c.Sources()
	return slices.ContainsFunc(sources, func(s policy.RegoSource) bool { return !s.Shadow && s.Bundle == f.Source().URL })
}
