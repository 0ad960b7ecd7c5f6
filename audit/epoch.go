package audit

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/egressd/egressd/audit/internal/format"
)

// proposeAhead makes the key of the next epoch on a goroutine of its own, for which
// whatever uses the pending key waits.
func (n *notary) proposeAhead() {
	n.proposed = sync.OnceValues(n.keys.propose)
	go n.proposed()
}

// propose returns the public key of the next epoch.
func (n *notary) propose() (string, error) {
	if n.proposed == nil {
		return n.keys.propose()
	}
	key, err := n.proposed()
	n.proposed = nil
	return key, err
}

// over reports whether the epoch has to end, although there is nothing new to sign:
// whoever takes a log over that is idle shall not find the key that signed its last
// records.
func (n *notary) over(m *format.Mark) bool {
	return m.Segment == n.segment && n.used && m.Size >= n.newest.Size && time.Since(n.began) >= n.options.Epoch
}

// armEpoch sees to it that an epoch in which something was signed ends in time.
func (l *Log) armEpoch() {
	if l.notary == nil {
		return
	}
	l.signing.Lock()
	defer l.signing.Unlock()
	if l.notary.used {
		l.epochTimer.Reset(max(time.Until(l.notary.began.Add(l.options.Epoch)), retryAfter))
	}
}

// resign writes the last checkpoint of a log that is closed. A key that would stay on
// disk is destroyed by it: its epoch ends. Where that fails it stays, and the next
// start destroys it.
func (l *Log) resign() {
	if l.notary == nil {
		return
	}
	l.signing.Lock()
	l.notary.closing = true
	l.signing.Unlock()
	if l.options.Ephemeral {
		_ = l.notarize() // an error is the log's
		return
	}
	if l.endEpoch() == nil || l.notarize() != nil {
		return
	}
	if err := l.endEpoch(); err != nil && l.options.Trouble != nil {
		l.options.Trouble(fmt.Errorf("end the epoch of the audit log's key: %w", err))
	}
}

// endEpoch ends the epoch with a checkpoint of every durable record. It does nothing if the key has signed nothing
// and has nothing to sign.
func (l *Log) endEpoch() error {
	n := l.notary
	l.signing.Lock()
	defer l.signing.Unlock()
	l.mu.Lock()
	err, m := l.err, l.durableMark
	l.mu.Unlock()
	switch {
	case err != nil:
		return err
	case m.Segment != n.segment:
		return errors.New("a segment waits for its seal")
	case !n.used && !n.due(&m):
		return n.ready()
	}
	if err := n.sign(&m, true); err != nil {
		return err
	}
	return n.ready()
}

// leaveOffice closes the file of checkpoints, and wipes the keys from memory.
func (l *Log) leaveOffice() {
	if l.notary == nil {
		return
	}
	l.signing.Lock()
	defer l.signing.Unlock()
	l.notary.gone = true
	l.notary.file.close()
	l.keepAges()
	if _ = l.lasts(); l.notary.keys == nil {
		return
	}
	if l.notary.proposed != nil {
		_, _ = l.notary.propose() // only to wipe it
	}
	l.notary.keys.now.wipe()
	if p := l.notary.keys.pending; p != nil {
		p.now.wipe()
	}
}
