// Package sandbox says who is at the other end of a connection. What a
// program claims of itself counts only as far as it can prove it: by a token,
// by the listener that it alone can reach, or by what the kernel and its client
// certificate say of it.
//
//	dir, err := sandbox.NewDirectory([]sandbox.Entry{{Name: "ci", Token: secret}})
//	who, err := dir.Identify(sandbox.Peer{User: "ci", Password: "…", HasCredentials: true})
package sandbox

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/policy"
)

// Default is the name of the one sandbox that whoever reaches a listener
// belongs to, where no sandboxes are listed.
const Default = "default"

// A Peer is what is known of the other end of one connection. Beside what it
// claims, all of it comes from the kernel or from a handshake that succeeded.
type Peer struct {
	Addr           netip.AddrPort // zero for a unix socket
	Listener       string         // the listen entry it came in by, as configured
	User, Password string
	HasCredentials bool

	// UID is the user who connected to a unix socket, where HasUID is set.
	UID    uint32
	HasUID bool

	// Certificate are the names in the peer's verified client certificate, as
	// [CertificateNames] returns them.
	Certificate []string

	// Process is the program that connected, as far as it is known: for the
	// record and for policies, never a proof. It is not changed.
	Process *policy.Process
}

// Source names where a peer comes from: its address without the port, or its
// listener and its user where it has none.
func (p Peer) Source() string {
	switch {
	case p.Addr.IsValid():
		return p.Addr.Addr().String()
	case p.HasUID:
		return fmt.Sprintf("%s uid %d", p.Listener, p.UID)
	}
	return p.Listener
}

// PlainName reports whether text can be the name of a sandbox: 1 to 64 letters,
// digits, ".", "-" and "_", of which the first is a letter or a digit.
func PlainName(text string) bool {
	if text == "" || len(text) > 64 || strings.IndexByte(".-_", text[0]) >= 0 {
		return false
	}
	return !strings.ContainsFunc(text, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune(".-_", c))
	})
}

// An Entry is one sandbox that may ask. At least one field beside Name is
// given, and a peer is the sandbox only where all that are given fit.
type Entry struct {
	Name        string
	Token       string         // the password of proxy user Name
	Listener    string         // a listener of its own
	Enter       string         // a socket of its own, to hand its network in; see [Directory.IdentifyAttacher]
	UIDs        []uint32       // one of which a peer of a unix socket has
	Sources     []netip.Prefix // in one of which a peer's address lies; where they nest, the longest counts
	Certificate string         // a name in the client certificate

	Docker policy.Containers // one of which a peer's address is of, or hands its network in
}

// ErrUnknown is the error for a peer that is nobody's. It says nothing about
// who exists.
var ErrUnknown = errors.New("unknown sandbox, or wrong token")

// A Directory knows the sandboxes. It is safe for concurrent use.
type Directory struct {
	known       atomic.Pointer[register]
	failures    failures
	attachments attachments
	engine      atomic.Pointer[Engine]
}

// NewDirectory returns a directory of the given entries; without any, every
// peer is the sandbox [Default].
func NewDirectory(entries []Entry) (*Directory, error) {
	d := new(Directory)
	return d, d.Set(entries)
}

// Set replaces the sandboxes. On error those before attached.
func (d *Directory) Set(entries []Entry) error {
	r, err := newRegister(entries)
	if err != nil {
		return err
	}
	d.known.Store(r)
	return nil
}

// Credentials reports whether p, whatever it has shown so far, has to prove by
// a token who it is.
func (d *Directory) Credentials(p Peer) bool {
	p.User, p.Password, p.HasCredentials = "", "", false
	_, err := d.Identify(p)
	return err != nil
}

// Identify returns the sandbox that a peer is, or [ErrUnknown] and what is known of it
// all the same.
//
// A listener, a user, an address or a certificate that is one sandbox's says
// it all: what a peer claims there counts only against it. Where two of them
// are not the same sandbox's, or one that the sandbox needs is missing, the
// peer is nobody. A token alone places a peer that nothing else does.
func (d *Directory) Identify(p Peer) (policy.Sandbox, error) {
	r := d.known.Load()
	if strings.HasPrefix(p.Listener, attachmentPrefix) {
		return d.attachments.identify(r, &p)
	}
	if len(r.byName) == 0 {
		return policy.Sandbox{Name: Default}, nil
	}
	k, expected := d.container(r, &p)
	var who policy.Sandbox
	if k != nil {
		who.Container = k.Container
	}
	e := r.absent
	if k != nil || !expected {
		e = r.place(&p, k)
	}
	if e == nil {
		e = r.named(p.User)
	}
	if !e.proved(&p) {
		return who, ErrUnknown
	}
	who.Name, who.Kind, who.Labels = e.sandbox.Name, e.sandbox.Kind, e.sandbox.Labels
	return who, nil
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
