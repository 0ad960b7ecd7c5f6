package inspect

import (
	"crypto/tls"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/proxy/exchange"
)

// Bounds of upstream connections that no tunnel uses.
const (
	idleTime      = time.Second // until one is closed; servers wait longer, so that hardly any is closed under a request
	idleAge       = time.Minute // since its handshake; an older one is not kept
	idleMost      = 64
	idleOfSandbox = 16
)

// keptConnection is the note of a tunnel that got a connection of an earlier one.
const keptConnection = "the upstream connection was kept from an earlier tunnel of this sandbox"

// An idleKey says which tunnels may share an upstream connection. [egress.Flow.Reuse] compares the policy, too.
type idleKey struct {
	sandbox, host string
	client        string // the source of its peer
	port          uint16
	protos        string // that the upstream was offered
}

// An idleUpstream is a connection to an upstream whose tunnel has ended. It speaks HTTP/1.1 and owes no response.
type idleUpstream struct {
	key   idleKey
	conn  *tls.Conn
	kept  *egress.Kept // what is below conn
	timer *time.Timer
}

// idleUpstreams are connections for later tunnels (decision 55). The zero value is ready. It is safe for concurrent use.
type idleUpstreams struct {
	mu     sync.Mutex
	all    []*idleUpstream // the oldest first
	closed bool
}

// put keeps a connection for idleTime, and closes it. If there are too many, put closes it at once.
func (s *idleUpstreams) put(u *idleUpstream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := 0
	for _, other := range s.all {
		if other.key.sandbox == u.key.sandbox {
			own++
		}
	}
	if s.closed || own >= idleOfSandbox || len(s.all) >= idleMost {
		u.kept.Close()
		return
	}
	s.all = append(s.all, u)
	u.timer = time.AfterFunc(idleTime, func() { s.drop(u) })
}

// drop closes a connection unless take was quicker.
func (s *idleUpstreams) drop(u *idleUpstream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := slices.Index(s.all, u); at >= 0 {
		s.all = slices.Delete(s.all, at, at+1)
		u.kept.Close()
	}
}

// take returns the newest connection with the key, or nil. The caller closes it.
func (s *idleUpstreams) take(key idleKey) *idleUpstream {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, u := range slices.Backward(s.all) {
		if u.key == key {
			s.all = slices.Delete(s.all, at, at+1)
			u.timer.Stop()
			return u
		}
	}
	return nil
}

// close closes all connections. None is kept from then on.
func (s *idleUpstreams) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, u := range s.all {
		u.timer.Stop()
		u.kept.Close()
	}
	s.all = nil
}

func (i *tunnel) idleKey() idleKey {
	return idleKey{i.flow.Sandbox(), i.dst.Host, i.Peer.Source(), i.dst.Port, strings.Join(i.protos, ",")}
}

// takeIdle returns TLS with the upstream that an earlier tunnel has left, or nil. The connection of this tunnel, on which
// nothing was said, is closed then.
func (i *tunnel) takeIdle() *tls.Conn {
	for {
		u := i.inspection.idle.take(i.idleKey())
		if u == nil {
			return nil
		}
		if !i.flow.Reuse(u.kept) {
			u.kept.Close()
			continue
		}
		i.flow.Keep(nil) // it ends with the tunnel
		if !i.replaceUpstream(u.conn.NetConn().(*exchange.UpstreamConn).Conn) {
			return nil
		}
		return u.conn
	}
}

// keep keeps the TLS with the upstream for a later tunnel, or closes it. left is nil if nothing may be kept.
func (i *tunnel) keep(left net.Conn) {
	conn, ok := left.(*tls.Conn)
	if !ok {
		return
	}
	if !i.mayKeep(conn) {
		conn.Close()
	}
}

// mayKeep keeps conn for a later tunnel, or returns false.
func (i *tunnel) mayKeep(conn *tls.Conn) bool {
	if i.certificateAsked.Load() || time.Since(conn.NetConn().(*exchange.UpstreamConn).Began) > idleAge {
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.endedBy != "" {
		return false
	}
	kept := i.flow.Keep(i.upstream)
	if kept == nil {
		return false
	}
	i.inspection.idle.put(&idleUpstream{key: i.idleKey(), conn: conn, kept: kept})
	i.upstream = nil
	return true
}
