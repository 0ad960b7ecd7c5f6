// Package sandbox says which sandbox a connection comes from. A program has to prove what it claims: by a
// token, by a listener or address that only its sandbox has, by its user, its container or its client
// certificate.
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

// Default is the name of the only sandbox if none are listed: every peer belongs to it.
const Default = "default"

// A Peer is the other end of one connection. User and Password are claims of the peer; all other fields come
// from the kernel or from a successful handshake.
type Peer struct {
	Addr           netip.AddrPort // zero for a unix socket
	Listener       string         // the listen entry it came in by, as configured
	User, Password string
	HasCredentials bool

	// UID is the user who connected to a unix socket, where HasUID is set.
	UID    uint32
	HasUID bool

	// Certificate holds the names in the peer's verified client certificate, see [CertificateNames].
	Certificate []string

	// Process is the program that connected, if it is known. It serves records and policies and proves nothing. It
	// is never changed.
	Process *policy.Process
}

// Source returns the peer's address without the port, or else its listener and user.
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

// An Entry is one sandbox. It has at least one field beside Name. A peer is this sandbox if it matches every
// field that is set.
type Entry struct {
	Name        string         // of one sandbox, or of a [policy.Template]
	User        string         // the proxy user; empty: Name. A template has the same id in both
	Token       string         // the password of the proxy user
	Listener    string         // a listener of its own
	Enter       string         // a socket of its own, to attach its network; see [Directory.IdentifyAttacher]
	UIDs        []uint32       // one of which a peer of a unix socket has
	Sources     []netip.Prefix // in one of which a peer's address lies; where they nest, the longest counts
	Certificate string         // a name in the client certificate

	Docker policy.Containers // containers that the address of a peer belongs to, or that attach a network
}

// ErrUnknown is for a peer that is no sandbox. Its text does not tell which sandboxes exist.
var ErrUnknown = errors.New("unknown sandbox, or wrong token")

// A Directory knows the sandboxes. It is safe for concurrent use.
type Directory struct {
	known       atomic.Pointer[register]
	failures    failures
	attachments attachedNetworks
	engine      atomic.Pointer[Engine]
}

// NewDirectory returns a directory of the entries. Without entries, every peer is the sandbox [Default].
func NewDirectory(entries []Entry) (*Directory, error) {
	d := new(Directory)
	return d, d.Set(entries)
}

// Set replaces the entries. On error the old ones stay in force.
func (d *Directory) Set(entries []Entry) error {
	r, err := newRegister(entries)
	if err != nil {
		return err
	}
	d.known.Store(r)
	return nil
}

// Credentials reports whether p has to send a token.
func (d *Directory) Credentials(p Peer) bool {
	p.User, p.Password, p.HasCredentials = "", "", false
	_, err := d.Identify(p)
	return err != nil
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
	sources map[string]wrongCredentials
}

type wrongCredentials struct {
	delay time.Duration
	last  time.Time
}

// Failed notes wrong credentials from p and returns how long to delay the answer: longer with each failure from
// the same source, up to four seconds. Only failing peers are delayed, so no sandbox can lock out another.
func (d *Directory) Failed(p Peer, now time.Time) time.Duration {
	f := &d.failures
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sources == nil || len(f.sources) >= sourcesMost {
		f.sources = map[string]wrongCredentials{}
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
