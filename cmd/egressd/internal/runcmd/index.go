package runcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon"
	"github.com/egressd/egressd/logs/export"
	"github.com/egressd/egressd/logs/sink"
)

// A runIndex is the log of all runs of a user, which vouches for the key and for the
// end of the log of each.
type runIndex struct {
	dir, keys, run string
	anchors        *sink.Anchors // of the index; nil where there are none

	vouching sync.Mutex     // is held over vouch
	vouched  bool           // for the run
	early    sync.WaitGroup // vouches while the program runs

	ended  chan error  // what came of its end; nil where nobody has begun to record it
	held   atomic.Bool // it is opened, and stays open, for as long as the program may be over at once
	turn   sync.Mutex  // guards what follows, and the opening
	log    *audit.Log  // while it is held
	failed error       // to open it
}

const (
	indexSegment = 16 << 10              // some two dozen runs: what opening it has to read
	indexPatient = 10 * time.Second      // with other runs that write to it
	indexHeld    = 20 * time.Millisecond // after the start of the program, in which others wait for it
)

// signRun has the keys of a run's log in memory alone. The index vouches for them
// beside the program.
func (r *runner) signRun(o *audit.Options) {
	r.index.keys = o.Keys
	o.Ephemeral = true
	o.Vouch, o.Last = r.index.vouch, r.index.endSoon
}

// vouch puts the key of the run's log into the index, once.
func (x *runIndex) vouch(origin, key string) error {
	x.vouching.Lock()
	defer x.vouching.Unlock()
	if x.vouched {
		return nil
	}
	if err := x.add(map[string]string{"kind": "run", "run": x.run, "origin": origin, "key": key}); err != nil {
		return fmt.Errorf("the index of runs: %w", err)
	}
	x.vouched = true
	return nil
}

// hold opens the index beside what else is to be done, and keeps it open until release or
// end, so that what comes in between is of one epoch. It may be held already.
func (x *runIndex) hold() {
	if x.held.Swap(true) {
		return
	}
	x.turn.Lock() // so that whoever is next waits
	go func() {
		defer x.turn.Unlock()
		x.log, x.failed = x.open()
	}()
}

// release lets others have the index, where it is held.
func (x *runIndex) release() error {
	x.turn.Lock()
	defer x.turn.Unlock()
	l, err := x.log, x.failed
	x.log, x.failed = nil, nil
	x.held.Store(false)
	if l != nil {
		err = errors.Join(err, l.Close())
	}
	return err
}

// lastAwhile has the index vouch for the run, if it did not yet, since its program is not over after a
// moment, and lets others have it. Where that fails it is tried once more, with an index
// of its own: of two records the first counts.
func (x *runIndex) lastAwhile(l *audit.Log) error {
	origin, key := l.Origin()
	if errors.Join(x.vouch(origin, key), x.release()) == nil {
		return nil
	}
	x.vouching.Lock()
	x.vouched = false
	x.vouching.Unlock()
	return x.vouch(origin, key)
}

// hideKeys hides what signs the logs from the program.
func (r *runner) hideKeys(c *config.Config, runs string) {
	r.index.dir = config.RunsIndexBeside(runs)
	hidden := []string{r.index.dir}
	if dir, err := c.KeyDir(); err == nil {
		hidden = append(hidden, dir)
	}
	for _, dir := range hidden {
		_ = os.MkdirAll(dir, 0o700) // else the program could make it
		r.hidden = append(r.hidden, dir)
	}
}

// attestRun puts the last checkpoint of a run's log into the index, so that its end
// cannot be cut off.
func (r *runner) attestRun() {
	err := r.index.hasEnded(r.Log)
	if err != nil {
		r.Complain(fmt.Errorf("record the end of the run's log: the index of runs: %w", err))
	}
}

// endSoon is end beside the log of the run, whose last checkpoint becomes durable at the same time: the
// index has it whole. Nobody is told that the run is over before both are.
func (x *runIndex) endSoon(checkpoint []byte) {
	if x.ended == nil {
		x.ended = make(chan error, 1)
		text := string(checkpoint)
		go func() { x.ended <- x.end(text) }()
	}
}

// hasEnded waits for endSoon, or is end where the log that was closed made no checkpoint then.
func (x *runIndex) hasEnded(l *audit.Log) error {
	x.early.Wait()
	if x.ended != nil {
		return <-x.ended
	}
	return x.end(string(l.Newest()))
}

// end closes what hold has opened. A run that nobody has vouched for has no end in the
// index.
func (x *runIndex) end(checkpoint string) (err error) {
	x.vouching.Lock()
	vouched := x.vouched
	x.vouching.Unlock()
	if vouched {
		err = x.add(map[string]string{"kind": "run-end", "run": x.run, "checkpoint": checkpoint})
	}
	return errors.Join(err, x.release())
}

// anchorIndex has the checkpoints of the index sent to where the policy says: one says
// which key each run has, and which end those have that have ended.
func (r *runner) anchorIndex(c *config.Config) error {
	places := c.File.Audit.Anchors
	witnesses, err := daemon.WitnessesOf(c)
	if err != nil {
		return err
	}
	c.File.Audit.Anchors, c.File.Audit.Witnesses = nil, nil
	if r.index.anchors != nil || len(places)+len(witnesses) == 0 {
		return nil
	}
	keys, err := c.KeyDir()
	if err != nil {
		return err
	}
	d := &daemon.Daemon{Talk: r.talk} // the run's own is not there yet
	r.index.anchors = sink.NewAnchors(r.index.dir, export.Here(), d.Complain, d.Tell)
	r.index.anchors.Keys = keys
	return r.index.anchors.Apply(places, witnesses)
}

// stopAnchors gives the last checkpoint of the index a moment.
func (x *runIndex) stopAnchors() {
	if x.anchors != nil {
		x.anchors.Stop(daemon.AnchorsDrain)
	}
}

// add appends a record to the index, and closes it again unless it is held, which ends
// the epoch of its keys.
func (x *runIndex) add(record map[string]string) (failed error) {
	text, err := asciiObject(record)
	if err != nil {
		return err
	}
	x.turn.Lock()
	defer x.turn.Unlock()
	l, err := x.log, x.failed
	if !x.held.Load() {
		if l, err = x.open(); err == nil {
			defer func() { failed = errors.Join(failed, l.Close()) }()
		}
	}
	if err != nil {
		return err
	}
	_, err = l.Append(text)
	return err
}

func (x *runIndex) open() (*audit.Log, error) {
	o := audit.Options{Keys: x.keys, SegmentBytes: indexSegment, Brief: true}
	if x.anchors != nil {
		o.Anchor = x.anchors.Send
	}
	for until := time.Now().Add(indexPatient); ; time.Sleep(20 * time.Millisecond) {
		l, err := audit.Open(x.dir, o)
		if errors.Is(err, fs.ErrNotExist) {
			l, err = audit.Create(x.dir, o)
		}
		busy := errors.Is(err, audit.ErrLocked) || errors.Is(err, fs.ErrExist)
		if !busy || time.Now().After(until) {
			return l, err
		}
	}
}

// asciiObject writes an object with its kind first, in printable ASCII.
func asciiObject(members map[string]string) ([]byte, error) {
	text := []byte(`{"kind":` + asciiString(members["kind"]))
	for _, name := range []string{"run", "origin", "key", "checkpoint"} {
		if value, ok := members[name]; ok {
			text = append(text, `,"`+name+`":`+asciiString(value)...)
		}
	}
	text = append(text, '}')
	if !json.Valid(text) {
		return nil, errors.New("a record of the index of runs is not JSON")
	}
	return text, nil
}

// asciiString is a JSON string without a byte beyond ASCII.
func asciiString(s string) string {
	quoted, _ := json.Marshal(s) // a string is always fine
	var out []byte
	for _, r := range string(quoted) {
		if r < 0x7f {
			out = append(out, byte(r))
		} else {
			out = fmt.Appendf(out, `\u%04x`, r) // origins and base64 have none beyond 16 bits
		}
	}
	return string(out)
}
