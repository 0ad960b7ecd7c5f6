package egress

import (
	"slices"
	"sync"
	"time"

	"github.com/egressd/egressd/policy"
)

// requests keeps one copy of the requests that tunnels stand on: those of one
// sandbox to one place, by one program, differ in their time alone. It is safe
// for concurrent use.
type requests struct {
	mu    sync.Mutex
	known map[requestKey]*policy.Request
}

// A requestKey is what most often tells two requests apart. Those with the same
// key are compared as a whole.
type requestKey struct {
	sandbox, host, name, ja4 string
	via                      policy.Via
	port                     uint16
	protocol                 policy.Protocol
}

const requestsMost = 1024

// of returns r without its time, or an equal request that other flows share. The caller must not change r afterwards. A
// request with fields of its own, such as a body size, is not shared.
func (s *requests) of(r *policy.Request) *policy.Request {
	if r.HTTP != nil || r.DNS != nil || r.Process != nil || r.Sandbox.Labels != nil || r.Usage != nil || r.Approved != nil {
		return r
	}
	key := requestKey{
		sandbox: r.Sandbox.Name, via: r.Via, protocol: r.Protocol,
		host: r.Destination.Host, port: r.Destination.Port,
	}
	if r.TLS != nil {
		key.name, key.ja4 = r.TLS.ServerName, r.TLS.JA4
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if same := s.known[key]; same != nil && sameRequest(same, r) {
		return same
	}
	if s.known == nil || len(s.known) >= requestsMost {
		s.known = map[requestKey]*policy.Request{}
	}
	r.Time = time.Time{}
	s.known[key] = r
	return r
}

// sameRequest compares two requests that have the parts which of shares, but
// for their times.
func sameRequest(a, b *policy.Request) bool {
	return a.Sandbox.Name == b.Sandbox.Name && a.Sandbox.Kind == b.Sandbox.Kind && a.Sandbox.Template == b.Sandbox.Template && a.Sandbox.Attachment == b.Sandbox.Attachment && a.Sandbox.Container == b.Sandbox.Container &&
		a.Via == b.Via && a.Protocol == b.Protocol &&
		sameDestination(&a.Destination, &b.Destination) && sameHello(a.TLS, b.TLS)
}

func sameDestination(a, b *policy.Destination) bool {
	return a.Host == b.Host && a.Addr == b.Addr && a.Port == b.Port && a.Asked == b.Asked && a.Local == b.Local &&
		slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.Aliases, b.Aliases)
}

func sameHello(a, b *policy.ClientHello) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.ServerName == b.ServerName && a.NoName == b.NoName && a.Malformed == b.Malformed && a.JA4 == b.JA4 &&
		a.ECH == b.ECH && a.Inspected == b.Inspected && slices.Equal(a.ALPN, b.ALPN)
}
