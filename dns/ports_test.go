package dns

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	miekg "github.com/miekg/dns"
)

// portsAsked has the upstream note from where it is asked.
type portsAsked struct {
	mu   sync.Mutex
	from map[uint16]int // lookups
}

func (p *portsAsked) note(q *asked) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q.family() == "A" {
		p.from[q.client.Port()]++
	}
}

// spare counts the sockets that wait for a lookup.
func (p *ports) count() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, all := range p.spare {
		n += len(all)
	}
	return n
}

// TestPortsAreUsedAgainButNotForLong asks for many names one after the other, in
// less time than a socket lives.
func TestPortsAreUsedAgainButNotForLong(t *testing.T) {
	seen := portsAsked{from: map[uint16]int{}}
	up := startUpstream(t, func(q *asked) {
		seen.note(q)
		q.answer(q.msg.Question[0].Name+" 60 IN A "+truth, soa)
	})
	f := forwarder(up)
	f.ports.life = time.Hour // on a machine of any speed
	t.Cleanup(func() { f.ports.life = time.Nanosecond; f.ports.sweep() })
	const lookups = portsFrom * portUses / 2
	for n := range lookups {
		wantAddrs(t, f, fmt.Sprintf("n%d.test", n), truth)
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if len(seen.from) < portsFrom {
		t.Errorf("%d lookups came from %d ports, want at least %d", lookups, len(seen.from), portsFrom)
	}
	for port, times := range seen.from {
		if times > 2*portUses { // the kernel may have chosen it twice
			t.Errorf("port %d served for %d lookups", port, times)
		}
	}
	if len(seen.from) > lookups/2 {
		t.Errorf("%d lookups came from %d ports: they do not serve again", lookups, len(seen.from))
	}
	if n := f.ports.count(); n > portsMost {
		t.Errorf("%d sockets are left", n)
	}
}

// TestAPortThatHeardAnythingElseServesNoMore has packets come that nobody asked for.
func TestAPortThatHeardAnythingElseServesNoMore(t *testing.T) {
	for name, script := range map[string]func(*asked){
		"a response with another ID": func(q *asked) {
			b := q.reply(miekg.RcodeSuccess, q.msg.Question[0].Name+" 60 IN A "+truth)
			b[0] ^= 1
			q.send(b)
			q.answer(q.msg.Question[0].Name+" 60 IN A "+truth, soa)
		},
		"a response that came too late": func(q *asked) {
			if q.family() == "A" {
				q.answer(q.msg.Question[0].Name + " 60 IN A " + truth)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := forwarder(startUpstream(t, script))
			f.Timeout = time.Second
			wantAddrs(t, f, "a.test", truth)
			if n := f.ports.count(); n != 0 {
				t.Errorf("%d sockets are kept", n)
			}
		})
	}
}

// TestAFloodOfForgeriesIsAnsweredWithTCP has somebody guess the ID of a question
// until it would be right.
func TestAFloodOfForgeriesIsAnsweredWithTCP(t *testing.T) {
	up := startUpstream(t, func(q *asked) {
		b := q.reply(miekg.RcodeSuccess, q.msg.Question[0].Name+" 60 IN A "+truth)
		if q.network == "tcp" {
			q.answer(q.msg.Question[0].Name+" 60 IN A "+truth, soa)
			return
		}
		for range 2 * maxUnfit {
			b[0]++
			if b[0] == q.raw[0] {
				b[0]++
			}
			q.send(b)
		}
	})
	f := forwarder(up)
	f.Timeout = 20 * time.Second // which nobody waits for
	wantAddrs(t, f, "a.test", truth)
	if n := f.ports.count(); n != 0 {
		t.Errorf("%d sockets are kept", n)
	}
}

// TestNoSocketIsLeft looks again when a socket's life is over.
func TestNoSocketIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p ports
		to := netip.MustParseAddrPort("127.0.0.1:9")
		for range 3 {
			one, err := p.take(t.Context(), to) // connected, and nothing is sent
			if err != nil {
				t.Fatal(err)
			}
			p.give(to, one)
		}
		if n := p.count(); n != 3 {
			t.Fatalf("%d sockets are kept, want 3", n)
		}
		time.Sleep(2*portLife + time.Millisecond)
		if n := p.count(); n != 0 || p.sweeping {
			t.Errorf("%d sockets are left, a timer runs: %v", n, p.sweeping)
		}
	})
}
