package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/dns"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/hint"
)

// A resolver asks the forwarder in force. A reload may bring another one.
type resolver struct {
	forwarder atomic.Pointer[dns.Forwarder]
	replaced  []*dns.Forwarder // whose last lookups may be under way; of the goroutine that reloads
}

// replace puts another forwarder in force. Lookups under way end with the one that they began with.
func (r *resolver) replace(f *dns.Forwarder) {
	if was := r.forwarder.Swap(f); was != f {
		r.replaced = append(slices.DeleteFunc(r.replaced, (*dns.Forwarder).Idle), was)
	}
}

// close ends the lookups under way, and waits for their goroutines.
func (r *resolver) close() {
	for _, f := range append(r.replaced, r.forwarder.Load()) {
		f.Close()
	}
}

func newResolver(c *config.Config) (*resolver, error) {
	f, err := newForwarder(c)
	if err != nil {
		return nil, err
	}
	r := new(resolver)
	r.forwarder.Store(f)
	return r, nil
}

// newForwarder asks the name servers of c. Its cache is empty.
func newForwarder(c *config.Config) (*dns.Forwarder, error) {
	upstreams, err := nameServers(c.File.Upstream.DNS)
	if err != nil {
		return nil, hint.Misused(err, `upstream: {dns: ["9.9.9.9"]} in `+c.Path)
	}
	if err := asksItself(c, upstreams); err != nil {
		return nil, hint.Misused(err, `upstream: {dns: ["9.9.9.9"]} in `+c.Path)
	}
	return &dns.Forwarder{Upstreams: upstreams, RecordTypes: c.File.Upstream.DNSTypes}, nil
}

// nameServers reads upstream.dns: "system", an address, or one with a port.
func nameServers(names []string) ([]netip.AddrPort, error) {
	var all []netip.AddrPort
	for _, name := range names {
		switch addr, err := netip.ParseAddr(name); {
		case name == "system":
			system, err := dns.SystemUpstreams("/etc/resolv.conf")
			if err != nil {
				return nil, fmt.Errorf("name servers of the system: %w", err)
			}
			all = append(all, system...)
		case err == nil:
			all = append(all, netip.AddrPortFrom(addr, 53))
		default:
			full, err := netip.ParseAddrPort(name)
			if err != nil {
				return nil, fmt.Errorf("upstream.dns: %q is neither system nor an address", name)
			}
			all = append(all, full)
		}
	}
	return all, nil
}

// Cached implements [egress.Resolver].
func (r *resolver) Cached(name string) ([]netip.Addr, []string, bool) {
	return r.forwarder.Load().Cached(name)
}

// life is for how long what was said of a name still holds.
func (r *resolver) life(name string) time.Duration { return r.forwarder.Load().Life(name) }

// Ask implements [egress.AsyncResolver].
func (r *resolver) Ask(name string, then func([]netip.Addr, []string, error)) {
	r.forwarder.Load().Ask(name, then)
}

func (r *resolver) Lookup(ctx context.Context, name string) ([]netip.Addr, []string, error) {
	return r.forwarder.Load().Lookup(ctx, name)
}

func (r *resolver) MayAsk(kind string) bool { return r.forwarder.Load().MayAsk(kind) }

// LookupRRs implements [egress.RRResolver].
func (r *resolver) LookupRRs(ctx context.Context, name, kind string) (egress.RRs, []string, error) {
	return r.forwarder.Load().LookupRRs(ctx, name, kind)
}
