package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/dns"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/hint"
)

// A resolver has the names of the machine's hosts file, and asks the forwarder in force for others. A reload may bring another
// forwarder, and so may a change of the system's name servers.
type resolver struct {
	forwarder atomic.Pointer[dns.Forwarder]
	machine   *machine

	mu       sync.Mutex       // guards what follows
	replaced []*dns.Forwarder // whose last lookups may be under way
}

// replace puts another forwarder in force. Lookups under way end with the one that they began with.
func (r *resolver) replace(f *dns.Forwarder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if was := r.forwarder.Swap(f); was != f {
		r.replaced = append(slices.DeleteFunc(r.replaced, (*dns.Forwarder).Idle), was)
	}
}

// now returns the forwarder in force, after a look at the machine.
func (r *resolver) now() *dns.Forwarder {
	if f := r.machine.follow(); f != nil {
		r.replace(f)
	}
	return r.forwarder.Load()
}

// close ends the lookups under way, and waits for their goroutines.
func (r *resolver) close() {
	r.mu.Lock()
	all := append(r.replaced, r.forwarder.Load())
	r.mu.Unlock()
	for _, f := range all {
		f.Close()
	}
}

// addrs returns the addresses of a name, for connections of egressd itself.
func (r *resolver) addrs(ctx context.Context, name string) ([]netip.Addr, error) {
	addrs, _, err := r.Lookup(ctx, name)
	return addrs, err
}

func newResolver(c *config.Config) (*resolver, error) {
	r := &resolver{machine: newMachine(c)} // before the servers are read
	f, err := newForwarder(c, r.machine.servers.path)
	if err != nil {
		return nil, err
	}
	r.forwarder.Store(f)
	return r, nil
}

// localServer is the name server that the C library asks if resolv.conf(5) names none.
var localServer = netip.MustParseAddrPort("127.0.0.1:53")

// newForwarder asks the name servers of c; those of the system are in the file system. Its cache is empty. A machine without a
// network has no name server, or no such file: localServer is asked until the file names others.
func newForwarder(c *config.Config, system string) (*dns.Forwarder, error) {
	return forwarderTo(c, system, localServer)
}

// forwarderTo is newForwarder, with the name servers to ask if the system has none.
func forwarderTo(c *config.Config, system string, without ...netip.AddrPort) (*dns.Forwarder, error) {
	upstreams, err := nameServers(c.File.Upstream.DNS, system, without)
	if err != nil {
		return nil, hint.Misused(err, `upstream: {dns: ["9.9.9.9"]} in `+c.Path)
	}
	if err := asksItself(c, upstreams); err != nil {
		return nil, hint.Misused(err, `upstream: {dns: ["9.9.9.9"]} in `+c.Path)
	}
	return &dns.Forwarder{Upstreams: upstreams, RecordTypes: c.File.Upstream.DNSTypes}, nil
}

// nameServers reads upstream.dns: "system", an address, or one with a port. If the system has no name servers, without stands for
// them, unless it is empty.
func nameServers(names []string, system string, without []netip.AddrPort) ([]netip.AddrPort, error) {
	var all []netip.AddrPort
	for _, name := range names {
		switch addr, err := netip.ParseAddr(name); {
		case name == "system":
			servers, err := dns.SystemUpstreams(system)
			if len(without) > 0 && (errors.Is(err, dns.ErrNoServers) || errors.Is(err, fs.ErrNotExist)) {
				servers, err = without, nil
			}
			if err != nil {
				return nil, fmt.Errorf("name servers of the system: %w", err)
			}
			all = append(all, servers...)
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
	f := r.now()
	if addrs := r.machine.addrs(name); len(addrs) > 0 {
		return addrs, nil, true
	}
	return f.Cached(name)
}

// IsLocal implements [egress.LocalResolver].
func (r *resolver) IsLocal(name string) bool { return len(r.machine.addrs(name)) > 0 }

// Search implements [egress.SearchResolver].
func (r *resolver) Search() []string {
	r.now()
	return r.machine.domains()
}

// life is for how long what was said of a name still holds.
func (r *resolver) life(name string) time.Duration {
	if r.IsLocal(name) {
		return machineEvery
	}
	return r.forwarder.Load().Life(name)
}

// Lookup implements [egress.Resolver].
func (r *resolver) Lookup(ctx context.Context, name string) ([]netip.Addr, []string, error) {
	f := r.now()
	if addrs := r.machine.addrs(name); len(addrs) > 0 {
		return addrs, nil, nil
	}
	return f.Lookup(ctx, name)
}

func (r *resolver) MayAsk(kind string) bool { return r.forwarder.Load().MayAsk(kind) }

// LookupRRs implements [egress.RRResolver].
func (r *resolver) LookupRRs(ctx context.Context, name, kind string) (egress.RRs, []string, error) {
	return r.now().LookupRRs(ctx, name, kind)
}
