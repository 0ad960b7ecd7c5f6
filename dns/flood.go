package dns

import (
	"net"
	"net/netip"
	"time"

	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// An intake decides which messages of one socket are read. A message beyond that is dropped before it is parsed: it has no
// answer, and one record a second holds the number of them for each sandbox. There are two bounds: the rate of a sandbox,
// and its share of the questions under way.
//
// An address that goes on is muted until the second is over: the kernel drops its datagrams, so that they leave
// room in the socket's buffer for those of others. Nobody counts what the kernel drops.
//
// The socket of a captured sandbox has no other users. It is read no faster than the rate allows; the kernel drops what does not fit
// into the socket's buffer meanwhile.
//
// An intake belongs to the goroutine that reads from the socket.
type intake struct {
	server *Server
	conn   *net.UDPConn
	name   string       // of the socket
	pace   *fair.Bucket // of the socket of a captured sandbox; else nil

	senders map[sandbox.Holder]*sender
	dropped map[netip.Addr]int // datagrams since the second began
	muted   []netip.Addr
	until   time.Time // the end of the second; zero while nothing is dropped
}

// A sender is one sandbox, or all peers that are no sandbox.
type sender struct {
	read   *fair.Bucket
	unread int64 // messages that are in no record yet
	peer   sandbox.Peer
}

const (
	muteAfter = 64  // datagrams of one address that were dropped in a second
	mutedMost = 256 // addresses of one socket; the kernel compares each datagram with all of them
)

func newIntake(s *Server, c *net.UDPConn, name string) *intake {
	ignore(c, nil) // one that was handed over may have the filter of an egressd that was killed
	in := &intake{server: s, conn: c, name: name, senders: map[sandbox.Holder]*sender{}, dropped: map[netip.Addr]int{}}
	if s.Placeholders {
		in.pace = readBudget(s.limits.PerSecond)
	}
	return in
}

// readBudget returns the rate at which messages of a sandbox are read: twice its question rate, so that
// excess questions get a refusal with a reason, plus a constant for sandboxes with a low rate.
func readBudget(perSecond int) *fair.Bucket {
	return &fair.Bucket{Rate: float64(100 + 2*perSecond), Most: float64(1000 + 10*perSecond)}
}

// await waits until the budget allows one more message.
func await(budget *fair.Bucket) {
	for ok, _ := budget.Take(1, time.Now()); !ok; ok, _ = budget.Take(1, time.Now()) {
		time.Sleep(time.Duration(float64(time.Second) / budget.Rate)) // at most 10 ms
	}
}

// admit counts a message with what is under way, for whom the caller releases when the message is answered. If it is not to be
// read, admit counts it as dropped.
func (in *intake) admit(peer sandbox.Peer, now time.Time) (who sandbox.Holder, ok bool) {
	who = in.server.Gate.Names.Holder(peer)
	if who.Sandbox == "" { // who forges addresses gets no more for it
		who = sandbox.Holder{}
	}
	if in.pace != nil {
		await(in.pace)
	}
	s := in.senders[who]
	if s == nil {
		s = &sender{read: readBudget(in.server.limits.PerSecond)}
		in.senders[who] = s
	}
	if ok, _ := s.read.Take(1, now); ok && in.server.flying.Acquire(who) {
		return who, true
	}
	if s.unread++; s.unread == 1 {
		s.peer = peer
	}
	if in.until.IsZero() {
		in.wait(now)
	}
	in.count(sourceOf(peer.Addr.Addr()))
	return who, false
}

// sourceOf is what is muted together: an IPv4 address, or the network of 64 bits of an IPv6 address.
func sourceOf(a netip.Addr) netip.Addr {
	if a = a.Unmap().WithZone(""); a.Is6() {
		a = netip.PrefixFrom(a, 64).Masked().Addr()
	}
	return a
}

func (in *intake) count(from netip.Addr) {
	if _, known := in.dropped[from]; !known && len(in.dropped) >= 16*mutedMost {
		return
	}
	in.dropped[from]++
	if in.dropped[from] == muteAfter && len(in.muted) < mutedMost {
		in.muted = append(in.muted, from)
		ignore(in.conn, in.muted)
	}
}

// wait has over called when a second has passed.
func (in *intake) wait(now time.Time) {
	in.until = now.Add(time.Second)
	_ = in.conn.SetReadDeadline(in.until) // which fails for a closed socket alone
}

// tick ends the second, if it is over: it records what was dropped and mutes nobody any more.
func (in *intake) tick(now time.Time) {
	if in.until.IsZero() || now.Before(in.until) {
		return
	}
	in.settle()
	if len(in.muted) > 0 {
		in.muted = in.muted[:0]
		ignore(in.conn, nil)
	}
	clear(in.dropped)
	in.until = time.Time{}
	for who, s := range in.senders {
		switch {
		case s.unread > 0: // the log failed
			in.wait(now)
		case s.read.Full(now):
			delete(in.senders, who)
		}
	}
	if in.until.IsZero() {
		_ = in.conn.SetReadDeadline(time.Time{})
	}
}

// settle records the messages that were dropped. A number that the log does not take is kept.
func (in *intake) settle() {
	for _, s := range in.senders {
		if s.unread > 0 && in.server.Gate.RefuseUnseen(s.peer, policy.ViaDNS, policy.DNSBudget, s.unread, "the sandbox sends more messages than egressd reads; those that the kernel dropped are not counted") == nil {
			s.unread = 0
		}
	}
}
