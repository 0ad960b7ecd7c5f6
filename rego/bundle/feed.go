package bundle

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"sync"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

var (
	// ErrNone is wrapped by the error of a feed that never had a good bundle.
	ErrNone = errors.New("no good bundle has been fetched yet")
	// ErrOlder is wrapped by the error that refuses a bundle which was issued before
	// the last good one.
	ErrOlder = errors.New("it was issued before the last good one")
)

// A Feed is one source and what is known of it. It is safe for concurrent use.
type Feed struct {
	source Source
	url    *url.URL
	client *http.Client
	store  store

	mu      sync.RWMutex // guards what follows
	state   State
	good    *rego.Bundle // the last good one, or nil
	damage  error        // why it is nil
	clock   clock
	written State  // as it is on disk
	unkept  []byte // the last good bundle, while it is not
}

// An Arrival is what a fetch brought.
type Arrival struct {
	// Bundle is the bundle that the server has, and Newer whether it is another than
	// the last good one.
	Bundle *rego.Bundle
	Newer  bool

	content []byte
	etag    string
}

// Open returns the feed of a source with what folder keeps of it from before, for
// the daemon that owner stands for. It asks no server and writes nothing. A bundle
// that was damaged on disk is as one that is not there: see [Feed.Good]. Who lets it
// decide asks [Feed.Private] first.
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

// load reads what is kept on disk. The signature is looked at once more, as of
// when the bundle came: whether it counts still is a question of its age.
func (f *Feed) load() {
	state, content, err := f.store.read()
	f.written = state
	if err == nil && content != nil {
		if f.good, err = rego.ReadBundle(content, &f.source.Key, state.Fetched); err == nil {
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

// Private returns why what was kept on disk may be another's than that of egressd's
// user: the folder, or the one around it, is, or others can write there.
func (f *Feed) Private() error {
	if err := f.store.check(); err != nil {
		return fmt.Errorf("bundle %s: %w", f.source.Label(), err)
	}
	return nil
}

// Source is what the feed was opened for.
func (f *Feed) Source() *Source { return &f.source }

// State is what is known now.
func (f *Feed) State() State {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.state
}

// Good returns the last good bundle, stale or not. The error wraps [ErrNone], or
// says why the one on disk cannot be read.
func (f *Feed) Good() (*rego.Bundle, error) {
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

// Stale says why the last good bundle does not count any more, in words that name
// no host; "" while it does.
func (f *Feed) Stale() string {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.state.stale(f.clock.now(), f.source.MaxAge)
}

// Lapse returns when the last good bundle will be stale, unless its server is
// heard again before. It is in the past where it is stale.
func (f *Feed) Lapse() time.Time {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.state.Content == "" {
		return time.Time{}
	}
	return time.Now().Add(f.state.lapse(f.source.MaxAge).Sub(f.clock.now()))
}

// Fetch asks the server what it has, within 30 seconds, and changes nothing: what
// it brings is good for [Feed.Accept], an error for [Feed.Fail]. No error quotes
// what the server sent at length, or the token.
func (f *Feed) Fetch(ctx context.Context) (*Arrival, error) {
	a, err := f.fetch(ctx)
	return a, shorten(err)
}

func (f *Feed) fetch(ctx context.Context) (*Arrival, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchWithin)
	defer cancel()
	token, err := f.source.token()
	if err != nil {
		return nil, err
	}
	f.mu.RLock()
	state, good := f.state, f.good
	f.mu.RUnlock()
	ask := download
	if f.url.Scheme == "oci" {
		ask = pull
	}
	got, err := ask(ctx, f.client, f.url, state.ETag, token)
	switch {
	case errors.Is(err, errUnchanged):
		return &Arrival{Bundle: good, etag: state.ETag}, nil
	case err != nil:
		return nil, err
	case sumOf(got.body) == state.Content:
		return &Arrival{Bundle: good, etag: got.etag}, nil
	}
	return f.judge(got, &state)
}

// tooEarly is how far the clock of who signs may be ahead of ours.
const tooEarly = 10 * time.Minute

// maxRevision bounds what a bundle calls itself, in bytes: it is kept, recorded and
// shown.
const maxRevision = 1 << 10

// judge says whether what was fetched may follow the bundle of state.
func (f *Feed) judge(got *fetched, state *State) (*Arrival, error) {
	now := time.Now()
	b, err := rego.ReadBundle(got.body, &f.source.Key, now)
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
	return &Arrival{Bundle: b, Newer: true, content: got.body, etag: got.etag}, nil
}

func olderError(b *rego.Bundle, state *State) error {
	issued := "at no stated time"
	if !b.Issued.IsZero() {
		issued = "at " + b.Issued.UTC().Format(time.RFC3339)
	}
	return fmt.Errorf("%w: %s, and that at %s", ErrOlder, issued, state.Issued.UTC().Format(time.RFC3339))
}

// Accept makes what arrived the last good bundle, and keeps it on disk. With an
// error it is the last good one too, until this process ends.
func (f *Feed) Accept(a *Arrival) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clock = clockFrom(time.Time{}) // the server was heard just now, whatever was known before
	now := f.clock.base
	if a.Newer {
		f.good, f.damage, f.unkept = a.Bundle, nil, a.content
		f.state.Content, f.state.Fetched = sumOf(a.content), now
		f.state.Revision, f.state.Issued, f.state.Expires = a.Bundle.Revision, a.Bundle.Issued, a.Bundle.Expires
	}
	f.state.ETag, f.state.Heard, f.state.Tried, f.state.Seen, f.state.Error = a.etag, now, now, now, ""
	return f.keep()
}

// Fail notes why an attempt brought nothing good.
func (f *Feed) Fail(why error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state.Tried, f.state.Seen, f.state.Error = time.Now().Round(0), f.clock.now(), clip(why.Error())
	return f.keep()
}

// writeAtLeast is how old times on disk may be where nothing else has changed.
const writeAtLeast = 30 * time.Second

// keep writes the state where it says something else than the one on disk.
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

// Guard returns the opinion that a bundle which is stale denies everything, asked
// for each decision. It has none while the bundle counts.
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
