package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/records/sink"
)

// A runIndex is the log of all runs of a user, which vouches for the key and for the
// end of the log of each.
type runIndex struct {
	dir, keys, run string
	vouched        atomic.Bool   // for the run
	anchors        *sink.Anchors // of the index; nil where there are none
}

const (
	indexSegment = 64 << 10         // some sixty runs: what opening it has to read
	indexPatient = 10 * time.Second // with other runs that write to it
)

// runsIndexBeside is the folder of the index, beside that of the runs.
func runsIndexBeside(runs string) string { return filepath.Join(filepath.Dir(runs), "runs-index") }

// signRun has the keys of a run's log in memory alone. The index vouches for them
// beside the start of the program, which does not wait for it.
func (r *runner) signRun(o *audit.Options) {
	r.index.keys = o.Keys
	o.Ephemeral = true
	o.Vouch = func(origin, key string) error {
		err := r.index.add(map[string]string{"kind": "run", "run": r.index.run, "origin": origin, "key": key})
		if err == nil {
			r.index.vouched.Store(true)
		}
		return err
	}
}

// hideKeys hides what signs the logs from the program.
func (r *runner) hideKeys(c *config, runs string) {
	r.index.dir = runsIndexBeside(runs)
	hidden := []string{r.index.dir}
	if dir, err := c.keyDir(); err == nil {
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
	if !r.index.vouched.Load() {
		return
	}
	err := r.index.add(map[string]string{"kind": "run-end", "run": r.index.run, "checkpoint": string(r.log.Newest())})
	if err != nil {
		r.complain(fmt.Errorf("record the end of the run's log: %w", err))
	}
}

// anchorIndex has the checkpoints of the index sent to where the policy says: one says
// which key each run has, and which end those have that have ended.
func (r *runner) anchorIndex(c *config) error {
	places := c.file.Audit.Anchors
	c.file.Audit.Anchors = nil
	if r.index.anchors != nil || len(places) == 0 {
		return nil
	}
	d := &daemon{talk: r.talk} // the run's own is not there yet
	r.index.anchors = sink.NewAnchors(r.index.dir, exportOrigin(), d.complain, d.tell)
	return r.index.anchors.Apply(places)
}

// stopAnchors gives the last checkpoint of the index a moment.
func (x *runIndex) stopAnchors() {
	if x.anchors != nil {
		x.anchors.Stop(anchorsDrain)
	}
}

// add appends a record to the index. Opening it begins an epoch of its keys.
func (x *runIndex) add(record map[string]string) error {
	text, err := asciiObject(record)
	if err != nil {
		return err
	}
	l, err := x.open()
	if err != nil {
		return fmt.Errorf("the index of runs: %w", err)
	}
	_, err = l.Append(text)
	if err := errors.Join(err, l.Close()); err != nil {
		return fmt.Errorf("the index of runs: %w", err)
	}
	return nil
}

func (x *runIndex) open() (*audit.Log, error) {
	o := audit.Options{Keys: x.keys, SegmentBytes: indexSegment}
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
