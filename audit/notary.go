package audit

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/audit/internal/format"
)

const defaultEpoch = time.Hour

// A seal is a segment that has ended, and how.
type seal struct {
	format.Mark
	torn format.Torn
}

// A notary writes the checkpoints of a log. It is used with signing held.
type notary struct {
	dir     string
	options *Options
	keys    *keys
	vouched bool

	segment  int                    // whose checkpoints it writes
	file     noteFile               // of that segment
	newest   *format.Checkpoint     // that is durable, or nil
	note     []byte                 // of newest
	signed   atomic.Int64           // the size of newest, for who does not wait for signing
	began    time.Time              // the epoch
	adopting bool                   // the next epoch's key is due
	proposed func() (string, error) // waits for the key of the next epoch; nil where nobody makes it
	used     bool                   // the key of this epoch has signed something that is not its end
	closing  bool                   // the next checkpoint that is no seal is the last one
	gone     bool                   // the log is closed, and the keys are wiped
}

// openNotary makes the notary of a log that has no record.
func (l *Log) openNotary() error {
	if l.options.unsigned {
		return nil
	}
	n := &notary{dir: l.dir, options: &l.options, segment: 1, file: noteFile{path: format.NotePath(l.dir, 1)}, began: time.Now()}
	if !l.options.Ephemeral { // else found makes them
		var err error
		if n.keys, err = createKeys(keyFolder(l.dir, l.options.Keys), newOrigin()); err != nil {
			return err
		}
	}
	l.notary = n
	return nil
}

// ready repeats the steps that failed or were postponed and that the next note needs.
func (n *notary) ready() error {
	if n.options.Vouch != nil && !n.vouched && n.newest == nil {
		if err := n.options.Vouch(n.keys.origin, n.keys.root); err != nil {
			return fmt.Errorf("have the log's key vouched for: %w", err)
		}
		n.vouched = true
	}
	if n.adopting {
		if err := n.keys.adopt(); err != nil {
			return err
		}
		n.adopting = false
		n.began = time.Now()
	}
	return nil
}

// sign writes a checkpoint of m, and ends the epoch with it where handover says so.
func (n *notary) sign(m *format.Mark, handover bool) error {
	return n.write(n.checkpoint(m), handover)
}

func (n *notary) checkpoint(m *format.Mark) *format.Checkpoint {
	return &format.Checkpoint{
		Origin: n.keys.origin, Size: m.Size, Root: m.Root(), Time: time.Now().UTC().Format(format.TimeLayout),
		Segment: m.Segment, First: m.First, Bytes: m.Bytes,
	}
}

// seal writes the last checkpoint of a segment, and goes on with the next segment.
func (n *notary) seal(s *seal) error {
	c := n.checkpoint(&s.Mark)
	c.Torn, c.TornSum = s.torn.Bytes, s.torn.SHA256
	c.Sealed, c.Edge = true, s.Edge.Bytes()
	if err := n.write(c, true); err != nil {
		return err
	}
	n.file.close()
	n.segment++
	n.file = noteFile{path: format.NotePath(n.dir, n.segment)}
	return n.ready()
}

// write makes c durable. With an error, nobody has seen it.
func (n *notary) write(c *format.Checkpoint, handover bool) (err error) {
	if err := n.ready(); err != nil {
		return err
	}
	if handover {
		if c.Next, err = n.propose(); err != nil {
			return err
		}
	}
	note, err := n.keys.now.signNote(c)
	if err != nil {
		return fmt.Errorf("sign a checkpoint: %w", err)
	}
	before, err := n.beforeFirst(c)
	if err != nil {
		return fmt.Errorf("sign a checkpoint: %w", err)
	}
	written := func() {
		if n.closing && !c.Sealed && n.options.Last != nil {
			n.options.Last(note)
		}
	}
	if err := n.file.append(append(before, note...), written); err != nil {
		return err
	}
	n.newest, n.note, n.adopting, n.used = c, note, handover, !handover
	n.signed.Store(c.Size)
	if n.options.Anchor != nil {
		n.options.Anchor(note)
	}
	return nil
}

// beforeFirst returns the note of no records, with its empty line, that the log has to
// begin with where c would be its first one.
func (n *notary) beforeFirst(c *format.Checkpoint) ([]byte, error) {
	if n.newest != nil || c.Size == 0 {
		return nil, nil
	}
	note, err := n.keys.now.signNote(n.checkpoint(&format.Mark{Segment: 1}))
	return append(note, '\n'), err
}

// due reports whether the checkpoint of a segment's mark says something new.
func (n *notary) due(m *format.Mark) bool {
	return m.Segment == n.segment && (n.newest == nil || m.Size > n.newest.Size)
}

// attestTo seals what waits for that, and writes a checkpoint of m where there is
// something new. It is called with signing held.
func (l *Log) attestTo(m *format.Mark) error {
	if err := l.lasts(); err != nil {
		return err
	}
	if err := l.sealWaiting(); err != nil {
		return err
	}
	n := l.notary
	if n.due(m) || n.over(m) {
		if err := n.sign(m, time.Since(n.began) >= n.options.Epoch); err != nil {
			return err
		}
	}
	return n.ready()
}

// sealWaiting seals the segments that have ended.
func (l *Log) sealWaiting() error {
	n := l.notary
	for {
		l.mu.Lock()
		waiting := l.sealed
		l.mu.Unlock()
		if len(waiting) == 0 {
			return nil
		}
		sealed := n.segment
		err := n.seal(&waiting[0])
		if n.segment > sealed { // also where the new key could not be taken
			l.mu.Lock()
			l.sealed = slices.Delete(l.sealed, 0, 1)
			l.mu.Unlock()
		}
		if err != nil {
			return err
		}
	}
}

// attest shows that checkpoints can be written before the log admits records again.
// It is called with writing and syncing held.
func (l *Log) attest() error {
	if l.notary == nil {
		return nil
	}
	l.signing.Lock()
	defer l.signing.Unlock()
	return l.attestTo(&l.tree)
}

// notarize writes the checkpoints that are due. An error is that of the log, which
// admits nothing then.
func (l *Log) notarize() error {
	if l.notary == nil {
		return nil
	}
	l.signing.Lock()
	defer l.signing.Unlock()
	l.mu.Lock()
	err, m := l.err, l.durableMark
	l.mu.Unlock()
	if err == nil && l.notary.gone {
		err = fmt.Errorf("%w: %w", ErrUnavailable, os.ErrClosed)
	}
	if err != nil {
		return err
	}
	segment := l.notary.segment
	if err := l.attestTo(&m); err != nil {
		return l.fail(err)
	}
	if l.notary.segment > segment || l.unretained || l.agesDue() {
		l.retain()
	}
	return nil
}

// Checkpoint syncs what was appended, writes a checkpoint of it where there is none,
// and returns the newest: a signed note.
func (l *Log) Checkpoint() ([]byte, error) {
	l.syncing.Lock()
	err := l.sync()
	l.syncing.Unlock()
	l.wakeCommitter()
	if err == nil {
		err = l.notarize()
	}
	return l.Newest(), err
}

// Newest returns the newest checkpoint that is durable, a signed note; nil where
// there is none yet. It may be called after Close.
func (l *Log) Newest() []byte {
	if l.notary == nil {
		return nil
	}
	l.signing.Lock()
	defer l.signing.Unlock()
	return bytes.Clone(l.notary.note)
}

// Origin returns what tells this log from all others, and the public key of its
// first epoch, which is what has to be known elsewhere to verify it.
func (l *Log) Origin() (origin, root string) {
	if l.notary == nil {
		return "", ""
	}
	_ = l.lasts() // which makes them
	l.signing.Lock()
	defer l.signing.Unlock()
	return l.notary.keys.origin, l.notary.keys.root
}

// grow adds the lines in text to the tree. It is called with writing held.
func (l *Log) grow(text []byte) {
	if l.notary == nil {
		return
	}
	for len(text) > 0 {
		i := bytes.IndexByte(text, '\n')
		l.tree.Add(text[:i])
		text = text[i+1:]
	}
}

// signDue is what the timer runs.
func (l *Log) signDue() {
	l.mu.Lock()
	l.signArmed = false
	l.mu.Unlock()
	l.wakeNotary()
}

// armNotary sees to it that there is a checkpoint in due time. It is called with mu
// held.
func (l *Log) armNotary() {
	if !l.signArmed && l.notary != nil {
		l.signArmed = true
		l.signTimer.Reset(signAfter)
	}
}

func (l *Log) wakeNotary() {
	select {
	case l.sign <- struct{}{}:
	default:
	}
}

// signUntilQuit is the notary's goroutine: nobody waits for it but Close.
func (l *Log) signUntilQuit() {
	defer close(l.signStopped)
	for {
		select {
		case <-l.sign:
			_ = l.notarize() // an error is the log's
			l.rearm()
			l.armEpoch()
		case <-l.signQuit:
			l.resign()
			l.leaveOffice()
			return
		}
	}
}

// rearm sets the timer again where a checkpoint did not hold all that is written.
func (l *Log) rearm() {
	if l.notary == nil {
		return
	}
	l.signing.Lock()
	newest := l.notary.newest
	l.signing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed && l.err == nil && (newest == nil || newest.Size < l.written) {
		l.armNotary()
	}
}
