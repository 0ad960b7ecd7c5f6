package dns

import (
	"cmp"
	"context"
	"crypto/rand"
	"net"
	"net/netip"
	"sync"
	"time"
)

// A socket is connected to an upstream, and bound to a random port by
// the kernel. One lookup at a time has it.
type socket struct {
	conn *net.UDPConn
	born time.Time
	uses int
	room [buffer]byte // for a response
}

// ports are sockets between two lookups. To make one costs more than a question
// and its answer; to have one for long would tell who can send packets in an
// upstream's name where to send them. So a lookup gets one of several, nobody can
// tell which; each serves for a second or portUses lookups; and one at which anything
// came that was not asked for serves for none. None is left a little after the last lookup. The
// zero value is ready for use.
type ports struct {
	mu       sync.Mutex // guards what follows; never held over a system call that waits
	spare    map[netip.AddrPort][]*socket
	sweeping bool // a timer runs that calls sweep

	life time.Duration // of a socket, for tests; 0: portLife
}

const (
	portUses  = 32
	portLife  = time.Second
	portsFrom = 16 // with fewer to choose from a lookup makes a new one
	portsMost = 64 // of each upstream
)

// take returns a socket for one lookup. The caller closes it or gives it back.
func (p *ports) take(ctx context.Context, upstream netip.AddrPort) (*socket, error) {
	if one := p.choose(upstream); one != nil {
		return one, nil
	}
	conn, err := new(net.Dialer).DialUDP(ctx, "udp", netip.AddrPort{}, upstream)
	if err != nil {
		return nil, err
	}
	return &socket{conn: conn, born: time.Now(), uses: 1}, nil
}

func (p *ports) choose(upstream netip.AddrPort) *socket {
	var noise [1]byte
	rand.Read(noise[:])
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.drop(upstream)
	if len(all) < portsFrom {
		return nil
	}
	at, last := int(noise[0])%len(all), len(all)-1
	one := all[at]
	all[at], all[last] = all[last], nil
	p.spare[upstream] = all[:last]
	one.uses++
	return one
}

// drop closes the sockets that are too old, and returns the others. p.mu is held.
func (p *ports) drop(upstream netip.AddrPort) []*socket {
	all := p.spare[upstream]
	young := all[:0]
	for _, one := range all {
		if time.Since(one.born) < p.lives() {
			young = append(young, one)
		} else {
			_ = one.conn.Close()
		}
	}
	clear(all[len(young):])
	if len(young) > 0 {
		p.spare[upstream] = young
	} else {
		delete(p.spare, upstream)
	}
	return young
}

// give takes a socket back at which all came that was asked for, and nothing else.
func (p *ports) give(upstream netip.AddrPort, one *socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.spare[upstream]
	if one.uses >= portUses || len(all) >= portsMost || time.Since(one.born) >= p.lives() {
		_ = one.conn.Close()
		return
	}
	if p.spare == nil {
		p.spare = map[netip.AddrPort][]*socket{}
	}
	p.spare[upstream] = append(all, one)
	p.arm()
}

func (p *ports) lives() time.Duration { return cmp.Or(p.life, portLife) }

// arm has sweep called. p.mu is held.
func (p *ports) arm() {
	if !p.sweeping {
		p.sweeping = true
		time.AfterFunc(p.lives(), p.sweep)
	}
}

// sweep closes what is too old, until nothing is left.
func (p *ports) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweeping = false
	for upstream := range p.spare {
		p.drop(upstream)
	}
	if len(p.spare) > 0 {
		p.arm()
	}
}
