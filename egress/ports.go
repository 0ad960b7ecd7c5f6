package egress

import (
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/policy"
)

// recentPorts counts the recent connections to each address and port. A connection that egressd closes first keeps its local port
// for a minute (TIME-WAIT, RFC 9293 section 3.6.1). A sandbox that only connects and leaves could use up the local
// ports towards one address. So in a minute a sandbox begins at most as many connections there as ports are left. A
// template counts as one sandbox. Each of its sandboxes gets at most the connections that the template has left.
//
// Its zero value counts nothing. It is safe for concurrent use.
type recentPorts struct {
	most int // towards one place in a minute, of all sandboxes; 0: any number

	mu         sync.Mutex // guards what follows
	tick       int64      // the newest
	ticks      [portTicks]map[*portUse]int
	uses       map[portKey]*portUse
	toward     map[netip.AddrPort]int
	perSandbox map[string]int // how many there are in uses, by sandbox or template
}

type portKey struct {
	who string         // a sandbox or a template
	to  netip.AddrPort // the zero value stands for all that are too many to be told apart
}

type portUse struct {
	portKey
	n      int
	within bool // the connections count for a template, too
}

const (
	portTick       = 4 * time.Second
	portTicks      = 17   // a port is missed for 64 to 68 seconds: TIME-WAIT takes 60
	perSandboxMost = 4096 // of one sandbox or template, that are told apart
)

// localPorts returns how many connections towards one place may begin in a minute, by the
// settings of the kernel: a little less than half of its local ports. It takes every second
// port first, and once these are used up each connect(2) looks at all of them.
func localPorts() int {
	if text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_tw_reuse"); err == nil && strings.TrimSpace(string(text)) == "1" {
		return 0 // a port is free again after a second
	}
	first, last := 32768, 60999 // ip-sysctl(7)
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		if f := strings.Fields(string(text)); len(f) == 2 {
			a, errA := strconv.Atoi(f[0])
			b, errB := strconv.Atoi(f[1])
			if errA == nil && errB == nil {
				first, last = a, b
			}
		}
	}
	return max(2, (last-first+1)*9/20)
}

// take counts a connection that begins at a time of the gate's clock, and reports whether the sandbox may have one more.
// holder is the template of the sandbox, or the sandbox itself. Loopback is not counted: the kernel uses its ports again.
func (p *recentPorts) take(holder, sandbox string, to netip.AddrPort, at time.Duration) bool {
	if p.most == 0 || to.Addr().IsLoopback() {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.advance(int64(at / portTick))
	u := p.use(portKey{holder, to})
	left := p.most - p.toward[u.to] - u.n
	var own *portUse
	ok := left > 0
	if holder != sandbox {
		own = p.use(portKey{sandbox, to})
		own.within = true
		ok = own.n < (left+1)/2
	}
	for _, one := range []*portUse{u, own} {
		switch {
		case one == nil:
		case ok:
			p.count(one)
		default:
			p.tidy(one)
		}
	}
	return ok
}

// count counts one more connection of u. p.mu is held.
func (p *recentPorts) count(u *portUse) {
	u.n++
	if !u.within {
		p.toward[u.to]++
	}
	by := &p.ticks[p.tick%portTicks]
	if *by == nil {
		*by = map[*portUse]int{}
	}
	(*by)[u]++
}

// use returns the counter of key. A sandbox with too many counters shares one for its other destinations. p.mu is held.
func (p *recentPorts) use(key portKey) *portUse {
	if p.uses == nil {
		p.uses, p.toward, p.perSandbox = map[portKey]*portUse{}, map[netip.AddrPort]int{}, map[string]int{}
	}
	u := p.uses[key]
	if u == nil && p.perSandbox[key.who] >= perSandboxMost {
		key.to = netip.AddrPort{}
		u = p.uses[key]
	}
	if u == nil {
		u = &portUse{portKey: key}
		p.uses[key] = u
		p.perSandbox[key.who]++
	}
	return u
}

// advance forgets what was begun more than a minute before. p.mu is held.
func (p *recentPorts) advance(tick int64) {
	for ; p.tick < tick; p.tick++ {
		if tick-p.tick > portTicks { // all of it is too old
			p.tick = tick - portTicks
		}
		oldest := &p.ticks[(p.tick+1)%portTicks]
		for u, n := range *oldest {
			u.n -= n
			if !u.within {
				if p.toward[u.to] -= n; p.toward[u.to] == 0 {
					delete(p.toward, u.to)
				}
			}
			p.tidy(u)
		}
		*oldest = nil
	}
}

// tidy forgets a count of nothing. p.mu is held.
func (p *recentPorts) tidy(u *portUse) {
	if u.n > 0 {
		return
	}
	delete(p.uses, u.portKey)
	if p.perSandbox[u.who]--; p.perSandbox[u.who] == 0 {
		delete(p.perSandbox, u.who)
	}
}

// mayConnect counts one more connection of the flow's sandbox.
func (f *dialling) mayConnect(to netip.AddrPort) error {
	if !f.gate.ports.take(f.Holder(), f.Sandbox(), to, time.Since(f.gate.began)) {
		return errPorts
	}
	return nil
}

var tooManyPorts = policy.Decision{Class: policy.TooManyFlows, Rule: "limits", Layer: policy.Builtin, Reason: "the sandbox has begun as many connections to this address within a minute as local ports are left; a wider net.ipv4.ip_local_port_range raises the limit, and net.ipv4.tcp_tw_reuse=1 lifts it"}
