package daemon

import (
	"net/netip"
	"sync"
	"time"

	"github.com/egressd/egressd/admin"
)

// pages are the ports of loopback at which operators have a page in their browser. The baseline keeps
// sandboxes away from them, as from the operator's listener. The zero value is none.
type pages struct {
	mu    sync.Mutex // guards what follows
	until map[uint16]time.Time
}

// mostPages bounds the ports that are kept. Beyond, the one whose time ends first is given up.
const mostPages = 64

// keep keeps sandboxes away from a port for [admin.PageLease]. It reports whether it did so before already.
func (p *pages) keep(port uint16) (known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	_, known = p.until[port]
	if p.until == nil {
		p.until = map[uint16]time.Time{}
	}
	p.until[port] = now.Add(admin.PageLease)
	oldest := port
	for other, until := range p.until {
		if until.Before(now) {
			delete(p.until, other)
		} else if until.Before(p.until[oldest]) {
			oldest = other
		}
	}
	if len(p.until) > mostPages {
		delete(p.until, oldest)
	}
	return known
}

func (p *pages) where() (all []netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for port, until := range p.until {
		if time.Now().Before(until) {
			all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port))
		}
	}
	return all
}
