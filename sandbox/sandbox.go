// Package sandbox says who is at the other end of a connection. What a
// program claims of itself counts only as far as it can prove it: by a token,
// or by the listener that it alone can reach.
//
//	dir, err := sandbox.NewDirectory([]sandbox.Entry{{Name: "ci", Token: secret}})
//	who, err := dir.Identify(sandbox.Peer{User: "ci", Password: "…", HasCredentials: true})
package sandbox

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/policy"
)

// Default is the name of the one sandbox that whoever reaches a listener
// belongs to, where no sandboxes are listed.
const Default = "default"

// A Peer is what is known of the other end of one connection.
type Peer struct {
	Addr           netip.AddrPort // zero for a unix socket
	Listener       string         // the listen entry it came in by, as configured
	User, Password string
	HasCredentials bool
}

// Source names where a peer comes from: its address without the port, or its
// listener where it has none.
func (p Peer) Source() string {
	if p.Addr.IsValid() {
		return p.Addr.Addr().String()
	}
	return p.Listener
}

// An Entry is one sandbox that may ask.
type Entry struct {
	Name     string
	Token    string // the password of proxy user Name; empty: no token opens it
	Listener string // a listener of its own; whoever reaches it is this sandbox
}

// ErrUnknown is the error for a peer that is nobody's. It says nothing about
// who exists.
var ErrUnknown = errors.New("unknown sandbox, or wrong token")

// A Directory knows the sandboxes. It is safe for concurrent use.
type Directory struct {
	known    atomic.Pointer[register]
	failures failures
}

// A register is one list of sandboxes; it does not change.
type register struct {
	byName     map[string]entry
	byListener map[string]policy.Sandbox
	absent     entry // compared with where the name is unknown, so that both take the same time
}

type entry struct {
	sandbox policy.Sandbox
	token   [sha256.Size]byte
	open    bool // a token was given
}

// NewDirectory returns a directory of the given entries; without any, every
// peer is the sandbox [Default].
func NewDirectory(entries []Entry) (*Directory, error) {
	d := new(Directory)
	return d, d.Set(entries)
}

// Set replaces the sandboxes. On error those before stay.
func (d *Directory) Set(entries []Entry) error {
	r := &register{byName: map[string]entry{}, byListener: map[string]policy.Sandbox{}}
	if _, err := rand.Read(r.absent.token[:]); err != nil {
		return err
	}
	for _, e := range entries {
		if err := r.add(e); err != nil {
			return err
		}
	}
	d.known.Store(r)
	return nil
}

func (r *register) add(e Entry) error {
	if _, twice := r.byName[e.Name]; twice {
		return fmt.Errorf("sandbox %q is listed twice", e.Name)
	}
	if e.Token == "" && e.Listener == "" {
		return fmt.Errorf("sandbox %q has neither a token nor a listener, so nobody could be it", e.Name)
	}
	who := policy.Sandbox{Name: e.Name, Kind: "token"}
	r.byName[e.Name] = entry{sandbox: who, token: sha256.Sum256([]byte(e.Token)), open: e.Token != ""}
	if e.Listener != "" {
		if other, twice := r.byListener[e.Listener]; twice {
			return fmt.Errorf("sandboxes %q and %q share the listener %s", other.Name, e.Name, e.Listener)
		}
		r.byListener[e.Listener] = policy.Sandbox{Name: e.Name, Kind: "listener"}
	}
	return nil
}

// Credentials reports whether peers of a listener have to prove who they are.
func (d *Directory) Credentials(listener string) bool {
	r := d.known.Load()
	_, own := r.byListener[listener]
	return !own && len(r.byName) > 0
}

// Identify returns the sandbox that a peer is, or [ErrUnknown]. A listener
// that belongs to one sandbox says it all: what a peer claims there counts
// only against it.
func (d *Directory) Identify(p Peer) (policy.Sandbox, error) {
	r := d.known.Load()
	if own, ok := r.byListener[p.Listener]; ok {
		if p.HasCredentials && p.User != own.Name {
			return policy.Sandbox{}, ErrUnknown
		}
		return own, nil
	}
	if len(r.byName) == 0 {
		return policy.Sandbox{Name: Default}, nil
	}
	e, known := r.byName[p.User]
	if !known {
		e = r.absent
	}
	given := sha256.Sum256([]byte(p.Password))
	same := subtle.ConstantTimeCompare(given[:], e.token[:]) == 1
	if !p.HasCredentials || !same || !e.open {
		return policy.Sandbox{}, ErrUnknown
	}
	return e.sandbox, nil
}

const (
	firstDelay   = 250 * time.Millisecond
	longestDelay = 4 * time.Second
	forgetAfter  = time.Minute
	sourcesMost  = 4096
)

// failures counts wrong credentials by source.
type failures struct {
	mu      sync.Mutex
	sources map[string]failure
}

type failure struct {
	delay time.Duration
	last  time.Time
}

// Failed notes wrong credentials from p and returns how long its answer has
// to wait: longer with each failure from the same source, up to four seconds.
// Only failures wait, so nobody can lock another sandbox out.
func (d *Directory) Failed(p Peer, now time.Time) time.Duration {
	f := &d.failures
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sources == nil || len(f.sources) >= sourcesMost {
		f.sources = map[string]failure{}
	}
	seen := f.sources[p.Source()]
	if now.Sub(seen.last) > forgetAfter {
		seen.delay = 0
	}
	seen.last = now
	seen.delay = min(max(2*seen.delay, firstDelay), longestDelay)
	f.sources[p.Source()] = seen
	return seen.delay
}
