package proxy

import (
	"sync"

	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/sandbox"
)

// loopTables have the event loops of clients from other hosts and network namespaces. A client's network namespace may
// have a packet filter that the sandbox administers. For a virtual Ethernet device (veth) the kernel runs that filter
// on the thread that sends, here an event loop, and thousands of rules take milliseconds. On its own loop a holder
// pays for its filter alone.
type loopTables struct {
	mu        sync.Mutex // guards what follows
	sandboxes loopTable
	sources   loopTable // of clients that only their credentials can name
}

// loopTableMost bounds how many holders have loops of their own, in each table. One more holder shares those of the
// holder whose last connection is the longest ago.
const loopTableMost = 32

// pipesOfHolder is how many tunnels of one holder are carried through pipes at a time.
const pipesOfHolder = 8

// A loopTable holds the loops of some holders.
type loopTable struct {
	of   map[sandbox.Holder]*holderLoops
	uses uint64
}

// holderLoops are loops of one holder, one for each event loop of the server.
type holderLoops struct {
	loops []*relay.Loop // nil where none was needed yet
	used  uint64        // uses of the table when a connection came last
}

// find returns the loops of a holder, which are empty if it is new and the table has room.
func (t *loopTable) find(h sandbox.Holder, each int) *holderLoops {
	t.uses++
	found := t.of[h]
	if found == nil {
		if found = t.evict(); found == nil {
			found = &holderLoops{loops: make([]*relay.Loop, each)}
		}
		if t.of == nil {
			t.of = map[sandbox.Holder]*holderLoops{}
		}
		t.of[h] = found
	}
	found.used = t.uses
	return found
}

// evict takes the loops of the holder that used them the longest time ago, or none while the table has room.
// Connections that are open stay on them.
func (t *loopTable) evict() (oldest *holderLoops) {
	if len(t.of) < loopTableMost {
		return nil
	}
	var of sandbox.Holder
	for h, l := range t.of {
		if oldest == nil || l.used < oldest.used {
			of, oldest = h, l
		}
	}
	delete(t.of, of)
	return oldest
}

// holderLoop returns the loop for a connection that loop number i of the server accepted, or nil if it may stay there:
// the client is on this host, or egressd stops, or has no descriptors left for a loop.
func (s *Server) holderLoop(p *sandbox.Peer, h sandbox.Holder, i int) *relay.Loop {
	if addr := p.Addr.Addr(); !addr.IsValid() || addr.IsLoopback() {
		return nil
	}
	o := &s.loopTables
	o.mu.Lock()
	defer o.mu.Unlock()
	table := &o.sandboxes
	if h.Sandbox == "" {
		table = &o.sources
	}
	loops := table.find(h, len(s.loops)).loops
	if loops[i] == nil {
		if made, err := s.newOwnLoop(pipesOfHolder); err == nil {
			loops[i] = made.loop
		}
	}
	return loops[i]
}
