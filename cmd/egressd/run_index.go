package main

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
	"github.com/egressd/egressd/cmd/egressd/internal/config"
	"github.com/egressd/egressd/cmd/egressd/internal/logs"
	"github.com/egressd/egressd/records/sink"
)

// A runIndex is the log of all runs of a user, which vouches for the key and for the
// end of the log of each.
type runIndex struct {
	dir, keys, run string
	vouched        atomic.Bool   // for the run
	anchors        *sink.Anchors // of the index; nil where there are none

	turn   sync.Mutex // of who opens it
	ending opening    // at the end of the run; guarded by turn
}

// An opening waits until the index is open, and returns the same each time.
type opening func() (*audit.Log, error)

const (
	indexSegment = 16 << 10         // some two dozen runs: what opening it has to read
	indexPatient = 10 * time.Second // with other runs that write to it
)

// signRun has the keys of a run's log in memory alone. The index vouches for them
// beside the program, or when a run ends that was shorter.
func (r *runner) signRun(o *audit.Options) {
	r.index.keys = o.Keys
	o.Ephemeral = true
	o.Vouch = r.index.vouch
}

// vouch puts the key of the run's log into the index.
func (x *runIndex) vouch(origin, key string) error {
	if err := x.add(map[string]string{"kind": "run", "run": x.run, "origin": origin, "key": key}); err != nil {
		return fmt.Errorf("the index of runs: %w", err)
	}
	x.vouched.Store(true)
	return nil
}

// prepareEnd opens the index beside what else is to be done at the end of a run. It
// stays open until the end is in it, so that all of it is of one epoch.
func (x *runIndex) prepareEnd() {
	x.turn.Lock()
	defer x.turn.Unlock()
	x.ending = sync.OnceValues(func() (*audit.Log, error) {
		x.turn.Lock()
		defer x.turn.Unlock()
		return x.open()
	})
	go x.ending()
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
	if err := r.index.end(string(r.log.Newest())); err != nil {
		r.complain(fmt.Errorf("record the end of the run's log: the index of runs: %w", err))
	}
}

// end closes what prepareEnd has opened. A run that nobody has vouched for has no end
// in the index.
func (x *runIndex) end(checkpoint string) (err error) {
	if x.vouched.Load() {
		err = x.add(map[string]string{"kind": "run-end", "run": x.run, "checkpoint": checkpoint})
	}
	l, failed := x.ending()
	if failed != nil {
		return failed
	}
	return errors.Join(err, l.Close())
}

// anchorIndex has the checkpoints of the index sent to where the policy says: one says
// which key each run has, and which end those have that have ended.
func (r *runner) anchorIndex(c *config.Config) error {
	places := c.File.Audit.Anchors
	c.File.Audit.Anchors = nil
	if r.index.anchors != nil || len(places) == 0 {
		return nil
	}
	d := &daemon{talk: r.talk} // the run's own is not there yet
	r.index.anchors = sink.NewAnchors(r.index.dir, logs.Origin(), d.complain, d.tell)
	return r.index.anchors.Apply(places)
}

// stopAnchors gives the last checkpoint of the index a moment.
func (x *runIndex) stopAnchors() {
	if x.anchors != nil {
		x.anchors.Stop(anchorsDrain)
	}
}

// add appends a record to the index, and, before the end of the run, closes it again,
// which ends the epoch of its keys.
func (x *runIndex) add(record map[string]string) error {
	text, err := asciiObject(record)
	if err != nil {
		return err
	}
	x.turn.Lock()
	if ending := x.ending; ending != nil {
		x.turn.Unlock()
		l, err := ending()
		if err == nil {
			_, err = l.Append(text)
		}
		return err
	}
	defer x.turn.Unlock()
	l, err := x.open()
	if err != nil {
		return err
	}
	_, err = l.Append(text)
	return errors.Join(err, l.Close())
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
