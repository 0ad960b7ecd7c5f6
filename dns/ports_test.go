//go:build linux

package dns

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
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

// count is how many sockets wait for an exchange.
func (m *poller) count() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.ports.spare)
}

// stays has the sockets of m kept until leaves is called, on a machine of any speed.
func (m *poller) stays(t *testing.T) (leaves func()) {
	set := func(d time.Duration) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.ports.life, m.linger = d, d
	}
	set(time.Hour)
	t.Cleanup(func() { set(time.Nanosecond) })
	return func() { set(time.Nanosecond) }
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
	f.poller.stays(t)
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
	if n := f.poller.count(); n > portsMost {
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
			if n := f.poller.count(); n != 0 {
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
	if n := f.poller.count(); n != 0 {
		t.Errorf("%d sockets are kept", n)
	}
}

// TestNothingIsLeft looks again a little after the last lookup, and asks once more then.
func TestNothingIsLeft(t *testing.T) {
	f := forwarder(startUpstream(t, func(q *asked) { q.answer(q.msg.Question[0].Name+" 60 IN A "+truth, soa) }))
	for again := range 2 {
		leave := f.poller.stays(t)
		for n := range 3 {
			wantAddrs(t, f, fmt.Sprintf("n%d-%d.test", again, n), truth)
		}
		if n := f.poller.count(); n != 3 {
			t.Fatalf("%d sockets are kept, want 3", n)
		}
		leave()
		running := func() bool {
			f.poller.mu.Lock()
			defer f.poller.mu.Unlock()
			return f.poller.running
		}
		for late := time.Now().Add(10 * time.Second); running(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(late) {
				t.Fatal("it runs on")
			}
		}
		if f.poller.count() != 0 || len(f.poller.sockets) != 0 {
			t.Errorf("left are %d sockets and %d", f.poller.count(), len(f.poller.sockets))
		}
	}
}

// TestWhatComesAtASpareSocketEndsIt has the name server say more than it was asked, when
// it has answered.
func TestWhatComesAtASpareSocketEndsIt(t *testing.T) {
	more := make(chan func(), 2)
	f := forwarder(startUpstream(t, func(q *asked) {
		q.answer(q.msg.Question[0].Name+" 60 IN A "+truth, soa)
		more <- func() { q.answer(q.msg.Question[0].Name+" 60 IN A 192.0.2.66", soa) }
	}))
	f.poller.stays(t)
	wantAddrs(t, f, "a.test", truth)
	if n := f.poller.count(); n != 1 {
		t.Fatalf("%d sockets are kept, want 1", n)
	}
	(<-more)()
	for late := time.Now().Add(10 * time.Second); f.poller.count() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("the socket is still kept")
		}
	}
	(<-more)()
	wantAddrs(t, f, "a.test", truth)
	wantAddrs(t, f, "b.test", truth)
}

// TestASocketIsNotClosedUnderWhoSends has one retired that two lookups are about to send
// from: the first is over before it was told so. Its number must not be another's until then.
func TestASocketIsNotClosedUnderWhoSends(t *testing.T) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fds[1])
	open := func() bool {
		_, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fds[0]), syscall.F_GETFD, 0)
		return errno == 0
	}
	one := &socket{fd: fds[0]}
	m := &poller{epoll: -1, sockets: map[int32]*socket{int32(fds[0]): one}}
	var all [2]exchange
	for i := range all {
		m.have(&all[i], one)
	}
	m.retire(one)
	for i := range all {
		if !open() {
			t.Fatalf("it is closed, and %d lookups are about to send from it", len(all)-i)
		}
		m.sent(one, &all[i], nil)
	}
	if open() {
		t.Error("it is left open")
	}
}
