// Package index keeps the decisions of an audit log in memory, in a form that answers a filter fast: one
// row of 40 bytes for each decision, and one shape for all decisions that differ only in time, id and
// traffic. An Index is made from the log at each start. Only the log is evidence.
//
//	x := index.New()
//	go x.Follow(ctx, dir)
//	…
//	s := x.Sum(ctx, filter, nil)
package index

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/record/count"
)

// Bounds of the memory of an Index: about 50 MiB of rows and 25 MiB of shapes.
const (
	chunkRows  = 1 << 16
	mostChunks = 20
	mostShapes = 20_000
	mostOpen   = 100_000 // flows whose end is awaited
	mostEvents = 1000
)

// A Row is one decision, joined with the end of its flow.
type Row struct {
	Time     int64 // Unix time of the decision, in microseconds
	Seq      int64 // number of the record of the decision
	Flow     record.ID
	Shape    uint32
	Count    uint32 // requests that it counts as
	Ended    bool
	Took     time.Duration
	Up, Down int64
}

// row is the stored form of a Row.
type row struct {
	time     int64
	flow     record.ID
	seq      uint32 // since the first one
	shape    uint32
	count    uint32 // 0 if it belongs to another, see package count
	took     uint32 // milliseconds; noEnd before the flow has ended
	up, down uint32 // huge: in Index.huge
}

const (
	noEnd = math.MaxUint32
	huge  = math.MaxUint32
)

// An Index holds the newest decisions of a log. It is safe for concurrent use.
type Index struct {
	mu     sync.RWMutex // guards what follows
	chunks [][]row      // all but the last one are full
	first  int64        // number of the first row that is there
	base   int64        // seq of the first record
	huge   map[int64][2]int64
	shapes []string

	verdicts []string // of the shapes
	opens    []bool   // the shapes are of flows without an end

	ids     map[string]uint32
	scratch shape
	key     []byte
	open    map[record.ID]int64  // row of each flow without an end
	counter count.Counter[int64] // of rows
	events  []*record.Record
	next    int64 // number of the record to read next
	summed  bool  // there were more shapes than mostShapes
	caught  bool  // the end of the log was reached
	err     error
	changed chan struct{} // closed with the next change
	last    time.Time     // time of the last record
}

// New returns an empty Index.
func New() *Index {
	x := &Index{base: -1, huge: map[int64][2]int64{}, ids: map[string]uint32{}, open: map[record.ID]int64{}, changed: make(chan struct{})}
	x.counter.Belongs = func(row, _ int64) { x.setCount(row, 0) }
	return x
}

// A Progress says how far an index is.
type Progress struct {
	Next     int64     // number of the record that follows the last one that was read
	Rows     int       // decisions that the index holds
	Dropped  int64     // older decisions that it no longer holds
	Shapes   int       // different decisions
	Summed   bool      // paths of further decisions are left out, because there were too many
	CaughtUp bool      // the index has reached the end of the log at least once
	Last     time.Time // time of the last record
	Err      error     // why the index does not go on
}

// Progress returns how far the index is, and a channel that is closed when that changes.
func (x *Index) Progress() (Progress, <-chan struct{}) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return Progress{x.next, x.rows(), x.first, len(x.shapes), x.summed, x.caught, x.last, x.err}, x.changed
}

// Events returns the newest records that are no decisions, newest first: starts, policies, what operators
// did, and signals. They are not to be changed.
func (x *Index) Events() []*record.Record {
	x.mu.RLock()
	defer x.mu.RUnlock()
	all := make([]*record.Record, 0, len(x.events))
	for i := len(x.events) - 1; i >= 0; i-- {
		all = append(all, x.events[i])
	}
	return all
}

// Follow reads the log in dir, and what is appended, until ctx ends or the log cannot be read.
func (x *Index) Follow(ctx context.Context, dir string) error {
	err := x.follow(ctx, dir)
	if err != nil && ctx.Err() == nil {
		x.mu.Lock()
		x.err = err
		x.announce()
		x.mu.Unlock()
		return err
	}
	return nil
}

// waitForLog is how often Follow looks for a log that is not there yet.
const waitForLog = 500 * time.Millisecond

func (x *Index) follow(ctx context.Context, dir string) error {
	lines, err := audit.NewReader(dir, 0)
	for errors.Is(err, fs.ErrNotExist) {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(waitForLog):
		}
		lines, err = audit.NewReader(dir, 0)
	}
	if err != nil {
		return err
	}
	defer lines.Close()
	for {
		written, err := audit.Writing(dir)
		if err == nil {
			err = logs.Scan(logs.Until(ctx, lines), x.add)
		}
		if err != nil {
			return err
		}
		if ctx.Err() != nil { // lines are left, so lines.Follow would not wait
			return nil
		}
		x.catchUp(written)
		err = followFor(ctx, lines)
		for ; errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil; err = followFor(ctx, lines) {
			if now, err := audit.Writing(dir); err == nil && now != written {
				break // what was written last comes first
			}
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
}

// lookForWriter is how often Follow looks whether a process still writes the log.
const lookForWriter = 2 * time.Second

func followFor(ctx context.Context, lines *audit.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, lookForWriter)
	defer cancel()
	return lines.Follow(ctx)
}

// catchUp notes that all records were read. Flows that are still open have no end if nobody wrote the log before.
func (x *Index) catchUp(written bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !written {
		x.cut()
	}
	x.caught = true
	x.announce()
}

// announceEvery is the number of records after which readers are told, while there are many.
const announceEvery = 50_000

func (x *Index) add(_ string, r *record.Record) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.base < 0 {
		x.base = r.Seq
	}
	x.next, x.last = r.Seq+1, r.Time
	switch {
	case r.Kind == record.KindStart:
		x.cut()
		x.addEvent(r)
	case r.Kind == record.KindClose:
		x.end(r)
	case !logs.Decides(r):
		x.addEvent(r)
	case !logs.IsLookup(r):
		x.begin(r)
	}
	if x.next%announceEvery == 0 {
		x.announce()
	}
	return nil
}

// announce requires mu.
func (x *Index) announce() {
	close(x.changed)
	x.changed = make(chan struct{})
}

func (x *Index) addEvent(r *record.Record) {
	if len(x.events) >= 2*mostEvents {
		x.events = append([]*record.Record(nil), x.events[mostEvents:]...)
	}
	x.events = append(x.events, r.Clone())
}

func (x *Index) begin(r *record.Record) {
	flow, known := record.ParseID(r.Flow)
	d := count.Of(r)
	x.scratch.load(r)
	if d.IsName() {
		x.scratch.dns.Type = ""
	}
	opens := known && r.Decision.Action == "allow" && (r.Kind == record.KindOpen || r.Kind == record.KindRequest)
	if opens && r.Outcome == "" {
		x.scratch.Outcome = logs.OutcomeOpen
	}
	at := x.append(row{time: r.Time.UnixMicro(), flow: flow, shape: x.shapeID(), count: clamp(r.Times()), took: noEnd}, r.Seq)
	if r.Bytes != nil {
		x.setEnd(at, r)
	}
	if !opens {
		x.count(at, &d)
		return
	}
	x.counter.Begins(&d)
	if len(x.open) < mostOpen {
		x.open[flow] = at
	}
}

// count sets the count of a row whose decision opens no flow.
func (x *Index) count(row int64, d *count.Counted) {
	n, _ := x.counter.Add(d, func() int64 { return row })
	x.setCount(row, n)
}

func (x *Index) setCount(row, n int64) {
	if row >= x.first {
		x.at(row).count = clamp(n)
	}
}

// end completes the row of the flow that r ends. If the log begins in the middle of the flow, r is a row of
// its own.
func (x *Index) end(r *record.Record) {
	flow, _ := record.ParseID(r.Flow)
	at, opened := x.open[flow]
	delete(x.open, flow)
	if !opened || at < x.first {
		if r.Decision == nil || r.Dst == nil {
			return
		}
		x.scratch.load(r)
		at = x.append(row{time: r.Time.UnixMicro(), flow: flow, shape: x.shapeID(), count: clamp(r.Times()), took: noEnd}, r.Seq)
	} else {
		one := x.at(at)
		x.scratch.parse(x.shapes[one.shape])
		x.scratch.end(r)
		one.shape = x.shapeID()
	}
	x.setEnd(at, r)
	whole := x.scratch.view()
	if whole.Decision.Action != "allow" {
		d := count.Of(whole)
		d.Time, d.Times, d.Persons = r.Time, r.Times(), part(r.Decision).Question
		x.count(at, &d)
	} else if b := part(r.Bytes); count.Carries(r.Outcome, x.scratch.numbers[3] != "" && whole.HTTP == nil, b.Up, b.Down) {
		x.setCount(at, 0)
	}
}

func part[T any](p *T) *T {
	if p == nil {
		return new(T)
	}
	return p
}

// cut ends the flows of a process that is no more.
func (x *Index) cut() {
	x.counter.Flush()
	for _, at := range x.open {
		if at >= x.first {
			one := x.at(at)
			x.scratch.parse(x.shapes[one.shape])
			x.scratch.Outcome = logs.OutcomeCut
			one.shape = x.shapeID()
		}
	}
	clear(x.open)
}

func (x *Index) setEnd(at int64, r *record.Record) {
	one := x.at(at)
	one.took = min(clamp(r.Duration), noEnd-1)
	if r.Bytes == nil {
		return
	}
	if r.Bytes.Up >= huge || r.Bytes.Down >= huge {
		one.up, one.down = huge, huge
		x.huge[at] = [2]int64{r.Bytes.Up, r.Bytes.Down}
		return
	}
	one.up, one.down = clamp(r.Bytes.Up), clamp(r.Bytes.Down)
}

func clamp(n int64) uint32 { return uint32(max(0, min(n, math.MaxUint32))) }

// append adds a row and returns its number. It drops the oldest rows if there are too many.
func (x *Index) append(one row, seq int64) int64 {
	one.seq = clamp(seq - x.base)
	if len(x.chunks) == 0 || len(x.chunks[len(x.chunks)-1]) == chunkRows {
		if len(x.chunks) == mostChunks {
			x.chunks = append(x.chunks[:0:0], x.chunks[1:]...)
			x.first += chunkRows
		}
		x.chunks = append(x.chunks, make([]row, 0, chunkRows))
	}
	last := &x.chunks[len(x.chunks)-1]
	*last = append(*last, one)
	return x.first + int64(x.rows()) - 1
}

func (x *Index) rows() int {
	if len(x.chunks) == 0 {
		return 0
	}
	return (len(x.chunks)-1)*chunkRows + len(x.chunks[len(x.chunks)-1])
}

func (x *Index) at(number int64) *row {
	i := number - x.first
	return &x.chunks[i/chunkRows][i%chunkRows]
}

func (x *Index) whole(one *row, number int64) Row {
	r := Row{Time: one.time, Seq: x.base + int64(one.seq), Flow: one.flow, Shape: one.shape, Count: one.count, Up: int64(one.up), Down: int64(one.down)}
	if one.took != noEnd {
		r.Ended, r.Took = true, time.Duration(one.took)*time.Millisecond
	}
	if one.up == huge {
		both := x.huge[number]
		r.Up, r.Down = both[0], both[1]
	}
	return r
}

func (x *Index) shapeID() uint32 {
	x.key = x.scratch.text(x.key[:0])
	if id, known := x.ids[string(x.key)]; known {
		return id
	}
	if level := len(x.shapes) / mostShapes; level > 0 {
		x.summed = true
		x.scratch.plain(level)
		x.key = x.scratch.text(x.key[:0])
		if id, known := x.ids[string(x.key)]; known {
			return id
		}
	}
	text := string(x.key)
	id := uint32(len(x.shapes))
	x.shapes = append(x.shapes, text)
	x.verdicts = append(x.verdicts, strings.Clone(x.scratch.decision.Action))
	x.opens = append(x.opens, x.scratch.Outcome == logs.OutcomeOpen)
	x.ids[text] = id
	return id
}
