// Package upstream speaks to an upstream proxy, over HTTP (RFC 9110 section 9.3.6) or SOCKS5 (RFC 1928, RFC 1929).
//
// It opens no connection and decides nothing: package egress connects to the proxy, and says which decided
// destination to ask it for. The answer of the proxy is bounded in bytes. The deadline of the connection bounds its time.
//
//	proxy := &upstream.Proxy{At: at, User: "egressd", Password: "…"}
//	conn, err := proxy.Secure(ctx, conn)
//	err = proxy.Open(conn, destination)
package upstream

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/egressd/egressd/policy"
)

// A Proxy is an upstream proxy. It is not changed while it is used.
type Proxy struct {
	At     policy.Destination // where it listens
	SOCKS  bool               // it speaks SOCKS5, not HTTP
	TLS    *tls.Config        // of the connection to it; nil: in clear
	ByName bool               // it is asked for names, and resolves them
	Except []policy.Pattern   // destinations that it is not asked for

	User, Password string // by which egressd signs in; empty: it does not
}

// A RefusedError is the answer of a proxy that opens no tunnel.
type RefusedError struct {
	Answer string // status and reason in printable ASCII, at most 100 bytes
	Final  bool   // asking for another address of the same name is of no use
}

func (e *RefusedError) Error() string { return "the upstream proxy refused it: " + e.Answer }

// ErrNotProtocol means that the proxy answered something other than its protocol, or too much.
var ErrNotProtocol = errors.New("the upstream proxy answered what is not its protocol")

// Excepts reports whether a destination is to be reached directly: by its name, or by the address that to holds.
func (p *Proxy) Excepts(d *policy.Destination, to netip.AddrPort) bool {
	return slices.ContainsFunc(p.Except, func(x policy.Pattern) bool {
		return !d.Addr.IsValid() && x.MatchesName(d.Host, d.Port) || to.IsValid() && x.MatchesAddr(to.Addr(), to.Port())
	})
}

// TakesName reports whether the proxy resolves the name of a destination.
func (p *Proxy) TakesName(d *policy.Destination) bool {
	return p != nil && p.ByName && !d.Addr.IsValid() && !p.Excepts(d, netip.AddrPort{})
}

// TakesRequests reports whether plain HTTP for a destination goes to the proxy as whole requests with an absolute
// target. For other destinations the target could not hold both the decided address and the name.
func (p *Proxy) TakesRequests(d *policy.Destination) bool {
	return p != nil && !p.SOCKS && (p.TakesName(d) || d.Addr.IsValid() && !p.Excepts(d, netip.AddrPortFrom(d.Addr, d.Port)))
}

// Secure makes TLS with the proxy where it is to be. It returns conn where it is not.
func (p *Proxy) Secure(ctx context.Context, conn net.Conn) (net.Conn, error) {
	if p.TLS == nil {
		return conn, nil
	}
	config := p.TLS.Clone()
	config.ServerName, config.MinVersion = p.At.Host, tls.VersionTLS12
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("TLS with the upstream proxy: %w", err)
	}
	return secure, nil
}

// Open asks for a tunnel to d, which is a name or an address, on a connection to the proxy. Nothing that
// the proxy sends after its answer is taken from conn.
func (p *Proxy) Open(conn net.Conn, d policy.Destination) error {
	if p.SOCKS {
		return p.openSOCKS(conn, d)
	}
	return p.openHTTP(conn, d)
}

// Authorization returns the value of Proxy-Authorization, or "".
func (p *Proxy) Authorization() string {
	if p.User == "" {
		return ""
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(p.User+":"+p.Password))
}
