package exchange

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/fair"
)

// Requests are scanned for canaries at 50 to 200 MB a second, and a compressed body of a few KiB decodes to 16
// MiB. One sandbox could keep every processor busy with scans. Scans therefore take turns by sandbox and leave
// one processor free on a machine with several.
const (
	scannedPerTurn = 32 << 10    // in one turn
	scanPatience   = time.Minute // for a part of a body, or all of one that is compressed

	// unpackWork is what it takes at most to unpack a byte, in bytes that are searched: 1.5 to
	// 2.7 MB a second, of blocks that are large tables and say nothing.
	unpackWork = 32
)

// A scanTurn is the turns of what one flow sends. It is for one goroutine at a time.
type scanTurn struct {
	turns    *fair.Turns
	patience time.Duration
	flow     *egress.Flow
	ctx      context.Context // until nobody wants any more what is searched
	until    time.Time       // patience lasts, once begin was called
	held     bool            // a turn
	work     int             // that was done in it
}

func (s *Forwarder) ScanTurn(wanted context.Context, flow *egress.Flow) scanTurn {
	return scanTurn{turns: s.Scanning, patience: s.ScanPatience, flow: flow, ctx: wanted}
}

// ScanFirst searches the first bytes of a tunnel in turns. Its error is a [*egress.Refusal] if the bytes hold a
// canary or have waited too long. It gives up when wanted ends.
func (s *Forwarder) ScanFirst(wanted context.Context, flow *egress.Flow, first []byte) error {
	turn := s.ScanTurn(wanted, flow)
	turn.patience = min(turn.patience, s.Limits.Hello/2) // before the tunnel ends as if the client had been late
	if err := turn.begin(); err != nil {
		return err
	}
	defer turn.end()
	scanner := decodedScanner{guard: flow.Guard("first bytes"), turn: &turn}
	for part := range slices.Chunk(first, scannedPerTurn) {
		if _, err := scanner.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// begin waits for a turn. Once it has returned nil, end has to be called; an error is a
// [*egress.Refusal] where patience is at its end.
func (s *scanTurn) begin() error {
	s.until, s.work = time.Now().Add(s.patience), 0
	return s.take()
}

// spend is called before each piece of work, measured in scanned bytes. When the work of one turn is done and
// another sandbox waits, spend gives the turn up and waits for the next one.
func (s *scanTurn) spend(work int) error {
	if s.work+work > scannedPerTurn {
		if err := s.next(); err != nil {
			return err
		}
	}
	s.work += work
	return nil
}

func (s *scanTurn) next() error {
	s.work = 0
	if s.turns.Waiting() == 0 {
		return nil
	}
	s.end()
	return s.take()
}

// end may be called whatever begin and next have returned.
func (s *scanTurn) end() {
	if s.held {
		s.held = false
		s.turns.Give()
	}
}

func (s *scanTurn) take() error {
	if s.held = s.turns.TakeNow(); s.held {
		return nil
	}
	ctx, cancel := context.WithDeadline(s.ctx, s.until)
	defer cancel()
	err := s.turns.Take(ctx, s.flow.Holder(), s.flow.Sandbox())
	switch s.held = err == nil; {
	case s.held:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return s.flow.Overdue()
	}
	return incompleteBody{err}
}
