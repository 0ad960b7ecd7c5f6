package config

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/rego/bundle"
)

// Feeds are the fetched bundles of a policy. They belong to the goroutine that reloads.
type Feeds []*Feed

// A Feed is a fetched bundle and its state in the daemon.
type Feed struct {
	*bundle.Feed
	Pending       *bundle.Update     // update that is being put in force; nil for none
	Reported      string             // last recorded error while the feed fails
	ReportedStale bool               // the record of the stale bundle was written
	Stop          context.CancelFunc // ends polling; nil if polling has not begun
	Hurry         chan struct{}      // requests a fetch now
}

// Bundle returns the bundle to compile: the pending update or the last good one.
func (f *Feed) Bundle() (*bundle.Bundle, error) {
	if f.Pending != nil {
		return f.Pending.Bundle, nil
	}
	return f.Good()
}

// Take makes the pending update the last good bundle.
func (f *Feed) Take() error {
	pending := f.Pending
	if f.Pending = nil; pending == nil {
		return nil
	}
	return f.Accept(pending)
}

func (all Feeds) find(s *bundle.Source) *Feed {
	for _, f := range all {
		if f.Source().Same(s) {
			return f
		}
	}
	return nil
}

// Feed returns the daemon's feed of a bundle, or one opened from the stored state.
func (c *Config) Feed(s *file.RegoSource) (*Feed, error) {
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
	owner, err := c.AuditDir() // unique for each daemon
	if err != nil {
		return nil, err
	}
	f, err := bundle.Open(folder, owner, from)
	return &Feed{Feed: f, Hurry: make(chan struct{}, 1)}, err
}

// OpenFeeds opens the feeds of the configuration. It reuses those in open.
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
			return hint.Failed(err, "egressd policy show, once that is as it should be")
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

// Fetch fetches the wanted feeds concurrently. Each result becomes the Pending update of its feed.
func (c *Config) Fetch(ctx context.Context, wanted func(*Feed) bool) error {
	failures := make([]error, len(c.Feeds))
	var fetching sync.WaitGroup
	for i, f := range c.Feeds {
		if !wanted(f) {
			continue
		}
		fetching.Go(func() {
			if f.Pending, failures[i] = f.Fetch(ctx); failures[i] != nil {
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

// InForce reports whether a feed decides. The shadow policy uses the last bundle regardless of its age.
func (c *Config) InForce(f *Feed) bool {
	sources, _ := c.Sources()
	return slices.ContainsFunc(sources, func(s file.RegoSource) bool { return !s.Shadow && s.Bundle == f.Source().URL })
}
