// Package audit keeps an append-only log of records. A record is one JSON object, as bytes; the package
// numbers it, dates it and writes it as one line. It decides nothing, and never changes a record that it has
// acknowledged.
//
//	log, err := audit.Open(dir, audit.Options{})
//	seq, err := log.Append(record)     // written: survives the end of this process
//	log.Durable(seq, func(err error) { // synced: survives the end of the machine
//		…
//	})
//
// A log is a directory of segments, 00000001.log and so on, that only its
// owner can read. A line without its newline is a leaf, its seq the index of
// that leaf: counted from 0, without a gap, over all segments. The order of
// the log is the order of seq; times are for people.
//
// Concurrent appends share one write, and callers that wait for durability share one sync. After an error of either
// kind the current segment is neither written nor synced again. The torn end of the segment stays. The log
// continues in a fresh segment as soon as it can make one. A record whose append failed is in no segment, unless the file
// system wrote it and reported an error.
//
// The lines are the leaves of a Merkle tree (RFC 6962). The notary signs its state, a checkpoint, about once a second, with
// the key of an epoch, an hour. The key before it vouches for that key, and the first one, the root key, is what a verifier
// has to know. A segment that has ended is sealed: its last checkpoint covers all of it.
package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/internal/durable"
)

var (
	// ErrUnavailable is wrapped by every error that says that the log admits
	// no records at the moment.
	ErrUnavailable = errors.New("the audit log admits no records")
	// ErrLocked is wrapped by the errors for a log that another process, or another Log of this process,
	// is writing.
	ErrLocked = errors.New("another egressd already writes this log")
)

const (
	// DefaultSegmentBytes is the size at which a segment is followed by a new one, unless
	// [Options.SegmentBytes] says otherwise.
	DefaultSegmentBytes = 64 << 20

	flushAfter = time.Second / 10 // unsynced records that nobody waits for are synced after this time
	signAfter  = time.Second      // a record is in a checkpoint after this time and a little
	vouchAfter = time.Second / 10 // the first checkpoint of an ephemeral log
	retryAfter = time.Second      // between two attempts of Append to go on after an error
	keepBuffer = 1 << 20          // a write buffer that grew larger is given back
)

// A Log is a log open for writing; it is safe for concurrent use. Close it.
type Log struct {
	dir     string
	options Options
	lock    *os.File     // holds the flock
	founded func() error // does what found has put off; nil where it has not

	wake    chan struct{} // there may be something for the committer to do
	quit    chan struct{} // the committer has to sync once more and to end
	stopped chan struct{} // it has
	flush   *time.Timer   // runs flushDue

	sign        chan struct{} // there may be something for the notary to do
	signQuit    chan struct{} // the notary has to end
	signStopped chan struct{} // it has
	signTimer   *time.Timer   // runs signDue
	epochTimer  *time.Timer   // wakes the notary at the end of an epoch

	// writing is held over numbering, dating and writing: seq, file order and
	// acknowledgement agree. It is taken before syncing, that before signing, and
	// that before mu.
	writing  sync.Mutex
	end      format.Position // after the last acknowledged record, in the current segment
	tree     format.Mark     // of the same records
	buffer   []byte          // the lines of one write
	date     []byte          // in them
	retried  time.Time       // when the log last tried to go on after an error
	reserved *batch          // an empty batch for reuse

	// syncing is held over a sync, and over replacing or closing the segment.
	syncing sync.Mutex

	// signing is held over making checkpoints and writing them.
	signing sync.Mutex
	notary  *notary        // nil where the log is not signed
	past    *format.Pruned // of what retention has removed

	refused  atomic.Int64 // records that could not be written
	scarce   atomic.Bool  // see Scarce
	measured time.Time    // the free space; guarded by syncing

	ages       *ages     // of its sealed segments; nil until they are asked for, or where they could not be told
	aged       time.Time // they were asked for
	unretained bool      // the oldest segments were not looked at: what is owed was not known

	// mu is held for moments only, never over I/O or a callback.
	mu    sync.Mutex
	armed bool  // flush is running
	err   error // why no records are admitted; wraps ErrUnavailable

	interruption Interruption // since err was set, until it is recorded; the zero value before

	closed   bool          // Close was called: err is final
	queue    *batch        // records that wait for the next write
	segment  *segment      // the last one; replaced only with all three locks held
	written  int64         // records before this seq are acknowledged
	durable  int64         // records before this seq are durable, unless in lost
	lost     span          // records that were acknowledged and could not be synced
	waiting  *syncGroup    // who waits for the next sync
	lastSize int           // how many waited for the last one
	answered []*syncGroup  // those whose answer is known, and that the committer has not yet told
	torn     []format.Torn // not yet reported by Recovered

	signArmed   bool        // signTimer is running
	writtenMark format.Mark // of written
	durableMark format.Mark // of what is synced
	sealed      []seal      // segments that ended and wait for their seal
}

// A span is the seqs from from up to but not including to.
type span struct{ from, to int64 }

// cover returns the smallest span that holds s and what is between from and to.
func (s span) cover(from, to int64) span {
	if s.from < s.to {
		from = min(from, s.from)
	}
	return span{from, to}
}

func (s span) contains(seq int64) bool { return s.from <= seq && seq < s.to }

// Create makes a log in dir, and dir itself where it does not exist. It
// refuses a directory that already holds a log with an error that wraps
// [fs.ErrExist].
func Create(dir string, o Options) (*Log, error) {
	if err := makeDirectory(dir, !o.Ephemeral); err != nil {
		return nil, fmt.Errorf("create audit log: %w", err)
	}
	return start(dir, o, func(l *Log) error {
		found, err := format.ListFiles(dir)
		if err != nil {
			return fmt.Errorf("create audit log: %w", err)
		}
		if !found.None() {
			return fmt.Errorf("create audit log: there is one in %s: %w", dir, fs.ErrExist)
		}
		return l.begin()
	})
}

// begin makes the first segment, and the key and the checkpoint that stand for it.
func (l *Log) begin() (err error) {
	if err := l.openNotary(); err != nil {
		return fmt.Errorf("create audit log: %w", err)
	}
	if l.options.Ephemeral {
		return l.found()
	}
	if l.segment, err = createSegment(l.dir, 1); err != nil {
		return err
	}
	l.tree = format.Mark{Segment: 1}
	if l.notary == nil {
		return nil
	}
	return l.notary.sign(&l.tree, false)
}

// found makes the files of an ephemeral log. The key is made, and the file names are made durable, with the first sync or
// checkpoint, or by [Log.Origin].
func (l *Log) found() (err error) {
	if l.segment, err = newSegment(l.dir, 1); err != nil {
		return err
	}
	l.tree = format.Mark{Segment: 1}
	if l.notary != nil {
		if err := l.notary.file.create(); err != nil {
			return err
		}
	}
	l.founded = sync.OnceValue(func() (err error) {
		if l.notary != nil {
			if l.notary.keys, err = createKeys("", newOrigin()); err != nil {
				return err
			}
		}
		return errors.Join(durable.SyncFolder(l.dir), durable.SyncFolder(filepath.Dir(l.dir)))
	})
	return nil
}

// makeDirectory makes dir. With lasts, the new folder survives a crash.
func makeDirectory(dir string, lasts bool) error {
	err := os.Mkdir(dir, format.DirectoryRW)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil || !lasts {
		return err
	}
	return durable.SyncFolder(filepath.Dir(dir))
}

// Open opens the log in dir and goes on where it ends. A torn last line, which
// is what a crash leaves behind, is moved to a file beside its segment:
// see [Log.Recovered]. The error wraps [fs.ErrNotExist] for a log that does not exist, and [ErrLocked] for one that is
// open elsewhere. It is a [*DamageError] for a damaged log, and a [*DamageError] or [*Refusal] for a log that
// contradicts its newest checkpoint or has lost its key. Open reads every unsealed segment, usually the last one, and
// both ends of the others; see also [Options.Brief]. It begins an epoch of the log's keys.
func Open(dir string, o Options) (*Log, error) {
	found, err := format.ListFiles(dir)
	if err != nil {
		return nil, fmt.Errorf("open audit log: %w", err)
	}
	switch {
	case found.None():
		return nil, fmt.Errorf("open audit log: no segment in %s: %w", dir, fs.ErrNotExist)
	case len(found.Logs) == 0:
		return nil, &Refusal{"the audit log in " + dir + " has checkpoints, and its records are gone", "restore the newest state of the log, or " + setAside}
	}
	return start(dir, o, (*Log).resume)
}

// start locks the log, lets find set its segment and its end, and starts the
// committer.
func start(dir string, o Options, find func(*Log) error) (*Log, error) {
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = DefaultSegmentBytes
	}
	l := &Log{
		dir: dir, options: o, past: &format.Pruned{Dir: dir},
		wake: make(chan struct{}, 1), quit: make(chan struct{}), stopped: make(chan struct{}),
		sign: make(chan struct{}, 1), signQuit: make(chan struct{}), signStopped: make(chan struct{}),
		queue: new(batch), waiting: new(syncGroup),
	}
	if o.Epoch <= 0 {
		l.options.Epoch = defaultEpoch
	}
	var err error
	if l.lock, err = lockDirectory(dir); err != nil {
		return nil, err
	}
	if err := find(l); err != nil {
		if l.segment != nil {
			err = errors.Join(err, l.segment.Close())
		}
		l.leaveOffice()
		return nil, errors.Join(err, l.lock.Close())
	}
	l.written, l.durable = l.end.Seq, l.end.Seq
	l.writtenMark, l.durableMark = l.tree, l.tree
	l.measureSpace()
	l.armed, l.signArmed = true, true
	l.flush = time.AfterFunc(flushAfter, l.flushDue)
	l.signTimer = time.AfterFunc(l.firstSign(), l.signDue)
	l.epochTimer = time.AfterFunc(l.options.Epoch, l.wakeNotary)
	go l.commitUntilQuit()
	go l.signUntilQuit()
	return l, nil
}

func (l *Log) firstSign() time.Duration {
	if l.options.Ephemeral {
		return vouchAfter
	}
	return signAfter
}

func lockDirectory(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, format.FileRW)
	if err != nil {
		return nil, fmt.Errorf("lock audit log: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	for tries := 0; err == syscall.EWOULDBLOCK && tries < 5; tries++ { // it may be Writing that asks
		time.Sleep(10 * time.Millisecond)
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	switch {
	case err == nil:
		nameWriter(f)
		return f, nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		err = ErrLocked
	}
	return nil, errors.Join(fmt.Errorf("lock audit log: %s: %w", path, err), f.Close())
}

// Recovered returns the torn lines that were found since it was last called:
// by Open, and by a Log that went on after an error. The caller owes the log a
// record about each.
func (l *Log) Recovered() []format.Torn {
	l.mu.Lock()
	defer l.mu.Unlock()
	torn := l.torn
	l.torn = nil
	return torn
}

// Err returns nil while records are admitted, and otherwise an error that
// wraps [ErrUnavailable] and says why. Only Append and Reopen can change that.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Close admits no more records, syncs the written ones, calls the pending callbacks and releases the log. It returns the
// error of the last sync, or the error that made the log unavailable.
func (l *Log) Close() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return fmt.Errorf("close audit log: %w", os.ErrClosed)
	}
	l.closed = true
	l.mu.Unlock()

	l.flush.Stop()
	l.signTimer.Stop()
	l.epochTimer.Stop()
	close(l.quit)
	<-l.stopped
	close(l.signQuit)
	<-l.signStopped

	l.mu.Lock()
	err := l.err
	l.err = fmt.Errorf("%w: %w", ErrUnavailable, os.ErrClosed)
	l.mu.Unlock()
	return errors.Join(err, l.segment.Close(), l.lock.Close())
}
