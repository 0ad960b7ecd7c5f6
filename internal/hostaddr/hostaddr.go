// Package hostaddr follows the addresses of this host as they change, so that
// "the host itself" means what it means now and not what it meant at start.
//
//	w, err := hostaddr.Watch()
//	defer w.Close()
//	addrs := w.Addrs()
package hostaddr

import (
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
)

// A Watcher holds the host's unicast addresses. It is safe for concurrent use.
type Watcher struct {
	addrs  atomic.Pointer[[]netip.Addr]
	source source
	stop   chan struct{} // is closed by Close
	done   chan struct{}
}

// Addrs returns the addresses, sorted. The slice must not be changed.
func (w *Watcher) Addrs() []netip.Addr { return *w.addrs.Load() }

// Close stops following.
func (w *Watcher) Close() {
	close(w.stop)
	w.source.Close()
	<-w.done
}

func (w *Watcher) read() error {
	found, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	addrs := make([]netip.Addr, 0, len(found))
	for _, a := range found {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP); ok {
				addrs = append(addrs, addr.Unmap())
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	w.addrs.Store(&addrs)
	return nil
}
