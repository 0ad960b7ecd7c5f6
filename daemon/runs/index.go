// Package runs keeps the logs of egressd run: an index that vouches for the key and the end of each log, and the
// removal of old logs.
package runs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/logs/sink"
)

// An Index is the log of all runs of a user, as one run uses it. The run's own log keeps its keys in memory; the
// index vouches for them, and for the last checkpoint.
//
// Hold opens the index in the background, so that the records of a short run need one opening. Its methods are safe
// for concurrent use, but for Wait, StopAnchors and the fields.
type Index struct {
	Dir, Keys, Run string         // folder of the index, folder of its keys, and the run
	Anchors        *sink.Anchors  // receivers of the checkpoints of the index; nil if there are none
	Early          sync.WaitGroup // goroutines that vouch while the program runs

	vouching sync.Mutex // held during Vouch
	vouched  bool       // for the run

	ended  chan error  // result of the end; nil before EndSoon
	held   atomic.Bool // Hold was called, and release was not
	turn   sync.Mutex  // guards what follows, and is held while the index is opened
	log    *audit.Log  // while the index is held
	failed error       // of opening it
}

const (
	// HeldFor is how long a run holds the index after its program started. Other runs wait meanwhile.
	HeldFor = 20 * time.Millisecond

	indexSegment = 16 << 10         // bytes, about two dozen runs: opening the index reads one segment
	indexPatient = 10 * time.Second // to wait for other runs that write to the index
)

// Vouch writes the key of the run's log to the index, once.
func (x *Index) Vouch(origin, key string) error {
	x.vouching.Lock()
	defer x.vouching.Unlock()
	if x.vouched {
		return nil
	}
	if err := x.add(map[string]string{"kind": "run", "run": x.Run, "origin": origin, "key": key}); err != nil {
		return fmt.Errorf("the index of runs: %w", err)
	}
	x.vouched = true
	return nil
}

// Hold opens the index in the background and keeps it open. It may be held already.
func (x *Index) Hold() {
	if x.held.Swap(true) {
		return
	}
	x.turn.Lock() // the next caller of add waits for the opening
	go func() {
		defer x.turn.Unlock()
		x.log, x.failed = x.open()
	}()
}

// release closes the index if it is held, so that other runs can write.
func (x *Index) release() error {
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

// KeepGoing is called when the program has run for [HeldFor]. It vouches for the run's log l, and releases the index.
// After an error it vouches once more with a new opening; of two records the first counts.
func (x *Index) KeepGoing(l *audit.Log) error {
	origin, key := l.Origin()
	if errors.Join(x.Vouch(origin, key), x.release()) == nil {
		return nil
	}
	x.vouching.Lock()
	x.vouched = false
	x.vouching.Unlock()
	return x.Vouch(origin, key)
}

// EndSoon records the last checkpoint of the run's log in the background, while the log itself makes that checkpoint
// durable. [Index.Wait] waits for both.
func (x *Index) EndSoon(checkpoint []byte) {
	if x.ended == nil {
		x.ended = make(chan error, 1)
		text := string(checkpoint)
		go func() { x.ended <- x.end(text) }()
	}
}

// Wait waits until the end of the run is recorded. If closing the log l made no checkpoint, Wait records its newest.
func (x *Index) Wait(l *audit.Log) error {
	x.Early.Wait()
	if x.ended != nil {
		return <-x.ended
	}
	return x.end(string(l.Newest()))
}

// end records the last checkpoint and releases the index. A run without a vouched key gets no end.
func (x *Index) end(checkpoint string) (err error) {
	x.vouching.Lock()
	vouched := x.vouched
	x.vouching.Unlock()
	if vouched {
		err = x.add(map[string]string{"kind": "run-end", "run": x.Run, "checkpoint": checkpoint})
	}
	return errors.Join(err, x.release())
}

// StopAnchors gives the anchors the time drain to send the last checkpoint of the index.
func (x *Index) StopAnchors(drain time.Duration) {
	if x.Anchors != nil {
		x.Anchors.Stop(drain)
	}
}

// add appends a record. It opens and closes the index unless Hold did; closing ends the epoch of the index's keys.
func (x *Index) add(record map[string]string) (failed error) {
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

func (x *Index) open() (*audit.Log, error) {
	o := audit.Options{Keys: x.Keys, SegmentBytes: indexSegment, Brief: true}
	if x.Anchors != nil {
		o.Anchor = x.Anchors.Send
	}
	for until := time.Now().Add(indexPatient); ; time.Sleep(20 * time.Millisecond) {
		l, err := audit.Open(x.Dir, o)
		if errors.Is(err, fs.ErrNotExist) {
			l, err = audit.Create(x.Dir, o)
		}
		busy := errors.Is(err, audit.ErrLocked) || errors.Is(err, fs.ErrExist)
		if !busy || time.Now().After(until) {
			return l, err
		}
	}
}

// asciiObject returns an object with its kind first, in printable ASCII.
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

func asciiString(s string) string {
	quoted, _ := json.Marshal(s) // a string always encodes
	var out []byte
	for _, r := range string(quoted) {
		if r < 0x7f {
			out = append(out, byte(r))
		} else {
			out = fmt.Appendf(out, `\u%04x`, r) // origins and base64 have no characters beyond 16 bits
		}
	}
	return string(out)
}
