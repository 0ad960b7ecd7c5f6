package dns

import (
	"net/netip"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/tokens"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// A flood is what sandboxes send to one socket beyond what egressd reads. Such a message is dropped before it is parsed: it
// has no answer, and one record a second holds the number of them for each sandbox.
//
// An address that goes on is muted until the second is over: the kernel drops its datagrams, so that they leave
// room in the socket's buffer for those of others. Nobody counts what the kernel drops.
//
// A flood belongs to the goroutine that reads from the socket.
type flood struct {
	gate   *egress.Gate
	socket *packets
	name   string // of the socket
	rate   int    // questions of one sandbox in a second, for which it gets an answer

	senders map[sandbox.Holder]*sender
	dropped map[netip.Addr]int // datagrams since the second began
	muted   []netip.Addr
	until   time.Time // the end of the second; zero while nothing is dropped
}

// A sender is one sandbox, or all peers that are no sandbox.
type sender struct {
	read   *tokens.Bucket
	unread int64 // messages that are in no record yet
	peer   sandbox.Peer
}

const (
	muteAfter = 64  // datagrams of one address that were dropped in a second
	mutedMost = 256 // addresses of one socket; the kernel compares each datagram with all of them
)

// readBudget returns the rate at which messages of a sandbox are read: twice its question rate, so that
// excess questions get a refusal with a reason, plus a constant for sandboxes with a low rate.
func readBudget(perSecond int) *tokens.Bucket {
	return &tokens.Bucket{Rate: float64(100 + 2*perSecond), Most: float64(1000 + 10*perSecond)}
}

// await waits until the budget allows one more message.
func await(budget *tokens.Bucket) {
	for ok, _ := budget.Take(1, time.Now()); !ok; ok, _ = budget.Take(1, time.Now()) {
		time.Sleep(time.Duration(float64(time.Second) / budget.Rate)) // at most 10 ms
	}
}

// drops reports whether a message of peer is not to be read, and counts it then.
func (f *flood) drops(peer sandbox.Peer, now time.Time) bool {
	who := f.gate.Names.Holder(peer)
	if who.Sandbox == "" { // who forges addresses gets no more for it
		who = sandbox.Holder{}
	}
	s := f.senders[who]
	if s == nil {
		s = &sender{read: readBudget(f.rate)}
		f.senders[who] = s
	}
	if ok, _ := s.read.Take(1, now); ok {
		return false
	}
	if s.unread++; s.unread == 1 {
		s.peer = peer
	}
	if f.until.IsZero() {
		f.wait(now)
	}
	f.count(sourceOf(peer.Addr.Addr()))
	return true
}

// sourceOf is what is muted together: an IPv4 address, or the network of 64 bits of an IPv6 address.
func sourceOf(a netip.Addr) netip.Addr {
	if a = a.Unmap().WithZone(""); a.Is6() {
		a = netip.PrefixFrom(a, 64).Masked().Addr()
	}
	return a
}

func (f *flood) count(from netip.Addr) {
	if _, known := f.dropped[from]; !known && len(f.dropped) >= 16*mutedMost {
		return
	}
	f.dropped[from]++
	if f.dropped[from] == muteAfter && len(f.muted) < mutedMost {
		f.muted = append(f.muted, from)
		f.socket.ignore(f.muted)
	}
}

// wait has over called when a second has passed.
func (f *flood) wait(now time.Time) {
	f.until = now.Add(time.Second)
	_ = f.socket.conn.SetReadDeadline(f.until) // which fails for a closed socket alone
}

// tick ends the second, if it is over: it records what was dropped and mutes nobody any more.
func (f *flood) tick(now time.Time) {
	if f.until.IsZero() || now.Before(f.until) {
		return
	}
	f.settle()
	if len(f.muted) > 0 {
		f.muted = f.muted[:0]
		f.socket.ignore(nil)
	}
	clear(f.dropped)
	f.until = time.Time{}
	for who, s := range f.senders {
		switch {
		case s.unread > 0: // the log failed
			f.wait(now)
		case s.read.Full(now):
			delete(f.senders, who)
		}
	}
	if f.until.IsZero() {
		_ = f.socket.conn.SetReadDeadline(time.Time{})
	}
}

// settle records the messages that were dropped. A number that the log does not take is kept.
func (f *flood) settle() {
	for _, s := range f.senders {
		if s.unread > 0 && f.gate.RefuseUnseen(s.peer, policy.ViaDNS, policy.DNSBudget, s.unread, "the sandbox sends more messages than egressd reads; those that the kernel dropped are not counted") == nil {
			s.unread = 0
		}
	}
}
