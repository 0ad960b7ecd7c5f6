package daemon

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/credentials"
	upstreams "github.com/egressd/egressd/egress/upstream"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy"
)

// upstreamProxy makes the upstream proxy of c, or nil where there is none. It reads the password.
func (d *Daemon) upstreamProxy(ctx context.Context, c *config.Config) (*upstreams.Proxy, error) {
	from := c.File.Upstream.Proxy
	if from == nil {
		return nil, nil
	}
	if err := d.asksItselfToConnect(c, from.At); err != nil {
		return nil, hint.Misused(err, "write another proxy under upstream.proxy in "+c.Path)
	}
	p := &upstreams.Proxy{At: from.At, SOCKS: from.SOCKS, ByName: from.ByName, Except: slices.Concat(from.Except, hostItself()), User: from.User}
	if from.User != "" {
		password, err := proxyPassword(ctx, c)
		if err != nil {
			return nil, hint.Misused(fmt.Errorf("password of upstream.proxy: %w", err), "correct upstream.proxy in "+c.Path)
		}
		p.Password = password
	}
	if from.TLS {
		roots, err := c.ExtraRoots()
		if err != nil {
			return nil, err
		}
		pool, err := certs.Pool(roots...)
		if err != nil {
			return nil, hint.Misused(fmt.Errorf("roots for upstream.proxy: %w", err), "correct tls.extra_roots in "+c.Path+", or install ca-certificates")
		}
		p.TLS = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return p, nil
}

// hostItself is what is never asked of an upstream proxy, which has a loopback of its own.
func hostItself() (all []policy.Pattern) {
	for _, text := range []string{"127.0.0.0/8:*", "[::1]:*"} {
		if p, err := policy.ParsePattern(text); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// proxyPassword returns the password without the line end that a file or a command has.
func proxyPassword(ctx context.Context, c *config.Config) (string, error) {
	from := c.File.Upstream.Proxy
	text, err := (&credentials.Source{File: from.PasswordFile, Command: from.PasswordCommand}).Text(ctx, c.Relative)
	if err != nil {
		return "", err
	}
	text = bytes.TrimRight(text, "\r\n")
	printable := !bytes.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f })
	if len(text) == 0 || len(text) > 255 || !printable {
		return "", errors.New("it is empty, longer than 255 bytes, or has control characters")
	}
	return string(text), nil
}

// asksItselfToConnect refuses a proxy that is this egressd, by a listener of c: each connection would lead to the next.
func (d *Daemon) asksItselfToConnect(c *config.Config, at policy.Destination) error {
	if !at.Addr.IsValid() {
		return nil
	}
	local := at.Addr.IsLoopback() || at.Addr.IsUnspecified() || slices.Contains(d.host.Addrs(), at.Addr)
	own := slices.Concat(c.Listeners(), *d.listeners.own.Load())
	if slices.ContainsFunc(own, func(l netip.AddrPort) bool {
		return l.Port() == at.Port && (l.Addr() == at.Addr || local && l.Addr().IsUnspecified())
	}) {
		return fmt.Errorf("upstream.proxy is egressd itself, which listens on %s", at)
	}
	return nil
}

// upstreamPatience is how long the start waits for the address of the upstream proxy.
const upstreamPatience = 5 * time.Second

// useUpstream has the gate connect through p from now on, and finds its addresses, which sandboxes must not reach.
func (d *Daemon) useUpstream(ctx context.Context, p *upstreams.Proxy) {
	d.Gate.Route.Through(p)
	ctx, cancel := context.WithTimeout(ctx, upstreamPatience)
	defer cancel()
	if err := d.Gate.Route.Find(ctx); err != nil {
		fmt.Fprintf(d.Talk, "egressd: warning: the name of upstream.proxy, %s, is not known: %v; nothing is connected until it is\n", p.At.Host, err)
	}
}
