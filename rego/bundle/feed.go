// Package bundle builds, signs, reads and verifies policies in OPA's bundle format ([Build], [Sign], [Read]), and fetches them from the
// operator's server. A [Feed] keeps the last good bundle
// on disk and decides when that bundle is too old.
//
// A fetch depends only on its source. It ignores the environment, cookies and redirects to other servers,
// and nothing sent by a sandbox influences it. After any failure the last good bundle stays in force until
// it is stale. Then [Feed.Guard] denies all requests.
//
//	feed, err := bundle.Open(folder, owner, source) // with the last good bundle, if there is one
//	update, err := feed.Fetch(ctx)                  // changes nothing
//	…                                               // compile update.Bundle, and put it in force
//	err = feed.Accept(update)                       // from now on it is the last good one
package bundle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/policy"
)

var (
	// ErrNone is wrapped by the error of a feed that never had a good bundle.
	ErrNone = errors.New("no good bundle has been fetched yet")
	// ErrOlder is wrapped by the error for a bundle that was issued before the last good one, expired or not.
	// The bundle is refused, but its server counts as heard, see [Feed.Fail].
	ErrOlder = errors.New("it was issued before the last good one")
)

// A Feed is a source and its state. It is safe for concurrent use.
type Feed struct {
	source Source
	url    *url.URL
	client *http.Client
	store  store

	mu      sync.RWMutex // guards the following fields
	state   State
	good    *Bundle // last good bundle, or nil
	damage  error   // reason why good is nil
	clock   *clock
	written State  // state on disk
	unkept  []byte // last good bundle if it could not be stored
}

// An Update is the result of a fetch.
type Update struct {
	// Bundle is the server's bundle. Newer reports whether it differs from the last good one.
	Bundle *Bundle
	Newer  bool

	content []byte
	etag    string
}

// Open returns the feed of a source for the daemon that owner identifies, with the state stored in folder.
// It contacts no server and writes nothing. A damaged bundle counts as missing, see [Feed.Good]. Callers
// that use the stored bundle must first check [Feed.Private].
func Open(folder, owner string, s Source) (*Feed, error) {
	u, err := s.check()
	if err != nil {
		return nil, fmt.Errorf("bundle %s: %w", s.Label(), err)
	}
	client, err := newClient(s.CA)
	if err != nil {
		return nil, fmt.Errorf("bundle %s: %w", s.Label(), err)
	}
	if u.Scheme == "oci" {
		if _, err := parseReference(u); err != nil {
			return nil, fmt.Errorf("bundle %s: %w", s.Label(), err)
		}
	}
	f := &Feed{source: s, url: u, client: client, store: store{filepath.Join(folder, s.identity(owner))}}
	f.load()
	return f, nil
}

// load reads the stored state. It verifies the signature as of the time when the bundle was fetched; its
// age is checked separately.
func (f *Feed) load() {
	state, content, err := f.store.read()
	f.written = state
	if err == nil && content != nil {
		if f.good, err = Read(content, &f.source.Key, state.Fetched); err == nil {
			state.Revision, state.Issued, state.Expires = f.good.Revision, f.good.Issued, f.good.Expires
		}
	}
	if err != nil {
		f.damage = fmt.Errorf("the last good bundle cannot be read: %w", err)
		state.Content, state.ETag = "", ""
	}
	state.Source = f.source.Label()
	f.state, f.clock = state, clockFrom(state.Seen)
}

// Private returns an error if another user may have written the stored state: the folder or its parent
// belongs to another user or is writable by others.
func (f *Feed) Private() error {
	if err := f.store.check(); err != nil {
		return fmt.Errorf("bundle %s: %w", f.source.Label(), err)
	}
	return nil
}

// Source returns the source of the feed.
func (f *Feed) Source() *Source { return &f.source }

// State returns the current state.
func (f *Feed) State() State {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.state
}

// Good returns the last good bundle, even if it is stale. The error wraps [ErrNone] or explains why the
// stored bundle is unreadable.
func (f *Feed) Good() (*Bundle, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	switch {
	case f.good != nil:
		return f.good, nil
	case f.damage != nil:
		return nil, f.damage
	}
	return nil, ErrNone
}

// Stale returns why the last good bundle is no longer valid, without naming a host. It returns "" for a
// valid bundle.
func (f *Feed) Stale() string {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.state.stale(f.clock.now(), f.source.MaxAge)
}

// Lapse returns the time at which the last good bundle becomes stale without another successful fetch.
func (f *Feed) Lapse() time.Time {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.state.Content == "" {
		return time.Time{}
	}
	return time.Now().Add(f.state.lapse(f.source.MaxAge).Sub(f.clock.now()))
}

// Fetch asks the server for a bundle, within 30 seconds. It changes no state: the caller passes its result
// to [Feed.Accept] and an error to [Feed.Fail]. An error never contains the token or long text of the
// server.
func (f *Feed) Fetch(ctx context.Context) (*Update, error) {
	a, err := f.fetch(ctx)
	return a, shorten(err)
}

func (f *Feed) fetch(ctx context.Context) (*Update, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchWithin)
	defer cancel()
	token, err := f.source.token()
	if err != nil {
		return nil, err
	}
	f.mu.RLock()
	state, good := f.state, f.good
	f.mu.RUnlock()
	ask := f.download
	if f.url.Scheme == "oci" {
		ask = f.pull
	}
	got, err := ask(ctx, state.ETag, token)
	switch {
	case errors.Is(err, errUnchanged):
		return &Update{Bundle: good, etag: state.ETag}, nil
	case err != nil:
		return nil, err
	case sumOf(got.body) == state.Content:
		return &Update{Bundle: good, etag: got.etag}, nil
	}
	return f.judge(got, &state)
}

// pull gets the bundle from a registry, unless the digest of its manifest is known.
func (f *Feed) pull(ctx context.Context, known, token string) (*fetched, error) {
	ref, err := parseReference(f.url)
	if err != nil {
		return nil, err
	}
	login, err := loginFromFile(token)
	if err != nil {
		return nil, fmt.Errorf("its token: %w", err)
	}
	return openRegistry(ref, f.client, login).pull(ctx, known)
}

// tooEarly is the tolerated difference between the signer's clock and ours.
const tooEarly = 10 * time.Minute

// maxRevision bounds the revision in bytes, since it is stored, recorded and shown.
const maxRevision = 1 << 10

// judge checks whether a fetched bundle may replace that of state.
func (f *Feed) judge(got *fetched, state *State) (*Update, error) {
	now := time.Now()
	b, err := Read(got.body, &f.source.Key, now)
	if errors.Is(err, ErrExpired) {
		if old, errOld := Read(got.body, &f.source.Key, time.Time{}); errOld == nil && old.Issued.Before(state.Issued) {
			err = fmt.Errorf("%w; %w", olderError(old, state), err)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case b.Issued.After(now.Add(tooEarly)):
		return nil, fmt.Errorf("it was issued at %s, which is yet to come", b.Issued.UTC().Format(time.RFC3339))
	case b.Issued.Before(state.Issued):
		return nil, olderError(b, state)
	case len(b.Revision) > maxRevision:
		return nil, fmt.Errorf("its revision has more than %d bytes", maxRevision)
	}
	return &Update{Bundle: b, Newer: true, content: got.body, etag: got.etag}, nil
}

func olderError(b *Bundle, state *State) error {
	issued := "at no stated time"
	if !b.Issued.IsZero() {
		issued = "at " + b.Issued.UTC().Format(time.RFC3339)
	}
	return fmt.Errorf("%w: %s, and that at %s", ErrOlder, issued, state.Issued.UTC().Format(time.RFC3339))
}

// Accept makes the update the last good bundle and stores it. If storing fails, the update is still the
// last good bundle of this process.
func (f *Feed) Accept(a *Update) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clock = clockFrom(time.Time{}) // a successful fetch proves the current time
	now := f.clock.base
	if a.Newer {
		f.good, f.damage, f.unkept = a.Bundle, nil, a.content
		f.state.Content, f.state.Fetched = sumOf(a.content), now
		f.state.Revision, f.state.Issued, f.state.Expires = a.Bundle.Revision, a.Bundle.Issued, a.Bundle.Expires
	}
	f.state.ETag, f.state.Heard, f.state.Tried, f.state.Seen, f.state.Error = a.etag, now, now, now, ""
	return f.keep()
}

// Fail records the error of an attempt. If the error wraps [ErrOlder], the server was heard, so the last
// good bundle does not become stale by age: somebody set a tag back, and the server shows it.
func (f *Feed) Fail(why error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if errors.Is(why, ErrOlder) {
		f.state.Heard = f.clock.now()
	}
	f.state.Tried, f.state.Seen, f.state.Error = time.Now().Round(0), f.clock.now(), clip(why.Error())
	return f.keep()
}

// writeAtLeast is the maximum age of the times on disk if nothing else has changed.
const writeAtLeast = 30 * time.Second

func (f *Feed) keep() error {
	now, before := f.state, f.written
	if f.unkept == nil && now.Error == before.Error && now.ETag == before.ETag && now.Seen.Sub(before.Seen).Abs() < writeAtLeast {
		return nil
	}
	if err := f.store.write(&now, f.unkept); err != nil {
		return fmt.Errorf("bundle %s is not kept on disk: %w", f.source.Label(), err)
	}
	f.written, f.unkept = now, nil
	return nil
}

// Guard returns an evaluator that denies all requests while the bundle is stale, and otherwise abstains.
func (f *Feed) Guard() policy.Evaluator { return guard{f} }

type guard struct{ feed *Feed }

func (g guard) Evaluate(context.Context, *policy.Request) (policy.Decision, error) {
	why := g.feed.Stale()
	if why == "" {
		return policy.Decision{Verdict: policy.Abstain}, nil
	}
	return policy.Decision{
		Class: policy.PolicyError, Rule: "bundle", Layer: policy.Organisation,
		Reason: "the policy's bundle is stale: " + why,
	}, nil
}

// A clock returns a lower bound of the current time. It follows the wall clock, but never falls behind
// base plus the elapsed monotonic time, nor behind a time that it has returned. It is safe for concurrent use.
type clock struct {
	base  time.Time    // without monotonic reading
	since time.Time    // time at which base was read, with monotonic reading
	shown atomic.Int64 // latest time returned, in Unix nanoseconds
}

// clockFrom returns a clock that starts at the later of now and latest, the latest time known to have
// passed.
func clockFrom(latest time.Time) *clock {
	now := time.Now()
	if wall := now.Round(0); wall.After(latest) {
		latest = wall
	}
	return &clock{base: latest, since: now}
}

func (c *clock) now() time.Time {
	now := time.Now()
	return c.reached(c.at(now.Sub(c.since), now.Round(0)))
}

// reached returns the later of t and the latest time that it has returned.
func (c *clock) reached(t time.Time) time.Time {
	for {
		shown := c.shown.Load()
		if shown >= t.UnixNano() {
			return time.Unix(0, shown)
		}
		if c.shown.CompareAndSwap(shown, t.UnixNano()) {
			return t
		}
	}
}

// at returns the time for an elapsed time since base and a wall clock reading.
func (c *clock) at(passed time.Duration, wall time.Time) time.Time {
	if counted := c.base.Add(passed); counted.After(wall) {
		return counted
	}
	return wall
}

// stale returns why a state is no longer valid, without naming a host. It returns "" for a valid state.
func (s *State) stale(now time.Time, maxAge time.Duration) string {
	switch {
	case s.Content == "":
		return "there is no good one"
	case !s.Expires.IsZero() && !now.Before(s.Expires):
		return fmt.Sprintf("it expired at %s", s.Expires.UTC().Format(time.RFC3339))
	case s.Heard.IsZero():
		return "its server was not heard yet"
	case now.Sub(s.Heard) >= maxAge:
		return fmt.Sprintf("its server was last heard at %s, more than %s ago", s.Heard.UTC().Format(time.RFC3339), maxAge)
	}
	return ""
}

// lapse returns the time at which the state becomes stale.
func (s *State) lapse(maxAge time.Duration) time.Time {
	at := s.Heard.Add(maxAge)
	if !s.Expires.IsZero() && s.Expires.Before(at) {
		return s.Expires
	}
	return at
}

const (
	maxBackOff = 10 * time.Minute
	minWait    = time.Second
)

// wait returns the wait before the next fetch after consecutive failures. The argument left is the time
// until the bundle is stale; random is between 0 and 1.
func (s *Source) wait(failures int, left time.Duration, random float64) time.Duration {
	w := s.Refresh
	for range failures - 1 {
		w = min(2*w, maxBackOff)
	}
	if failures > 0 {
		w = min(w, maxBackOff, s.MaxAge)
	}
	w += time.Duration(float64(w) * (random - 0.5) / 5)
	if left > 0 {
		w = min(w, left/2) // leaves time for another attempt
	}
	return max(w, minWait)
}

// Wait returns the wait before the next fetch after consecutive failures. It is about Refresh, longer
// after failures, and ends before the bundle is stale.
func (f *Feed) Wait(failures int) time.Duration {
	return f.source.wait(failures, time.Until(f.Lapse()), rand.Float64())
}
