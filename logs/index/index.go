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
	"slices"
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
	Time     int64  // Unix time of the decision, in microseconds
	Number   int64  // of the record, counted over all logs; Seq if there is one log
	Log      string // folder
	Seq      int64  // number of the record in its log
	Flow     record.ID
	Shape    uint32
	Count    uint32 // requests that it counts as
	Ended    bool
	Took     time.Duration
	Up, Down int64
	Query    int64 // bytes of the query of the request, up to 65535
}

// row is the stored form of a Row.
type row struct {
	time     int64
	flow     record.ID
	number   uint32 // since the first one
	shape    uint16 // there are at most three times mostShapes, and a few more
	query    uint16 // bytes
	count    uint32 // 0 if it belongs to another, see package count
	took     uint32 // milliseconds; noEnd before the flow has ended
	up, down uint32 // huge: in Index.huge
}

const (
	noEnd = math.MaxUint32
	huge  = math.MaxUint32
)

// An Index holds the newest decisions of a log, or of several. It is safe for concurrent use.
type Index struct {
	mu        sync.RWMutex // guards what follows
	chunks    [][]row      // all but the last one are full
	first     int64        // number of the first row that is there
	base      int64        // number of the first record
	logs      []string     // folders
	stretches []stretch    // in the order of their numbers
	huge      map[int64][2]int64
	shapes    []string

	verdicts []string // of the shapes
	opens    []bool   // the shapes are of flows without an end

	ids     map[string]uint16
	scratch shape
	key     []byte
	events  []*record.Record
	next    int64 // number of the record to read next
	summed  bool  // there were more shapes than mostShapes
	caught  bool  // the end of the log was reached
	err     error
	failed  map[string]error // logs of several that cannot be read, by folder
	changed chan struct{}    // closed with the next change
	last    time.Time        // time of the last record
}

// A stretch is records of one log that follow one another.
type stretch struct {
	number, seq int64 // of the first
	log         int   // in Index.logs
}

// New returns an empty Index.
func New() *Index {
	return &Index{base: -1, huge: map[int64][2]int64{}, ids: map[string]uint16{}, failed: map[string]error{}, changed: make(chan struct{})}
}

// A followed log is one that an index reads. The mutex of the index guards open and counter.
type followed struct {
	*Index
	log     int // in Index.logs
	dir     string
	lines   *audit.Reader
	open    map[record.ID]int64  // row of each flow without an end
	counter count.Counter[int64] // of rows
}

func (x *Index) newFollowed(dir string, lines *audit.Reader) *followed {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := &followed{Index: x, log: len(x.logs), dir: dir, lines: lines, open: map[record.ID]int64{}}
	x.logs = append(x.logs, dir)
	f.counter.Belongs = func(row, _ int64) { x.setCount(row, 0) }
	return f
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

const (
	waitForLog    = 500 * time.Millisecond // between two looks for a log that is not there yet, or for records of several logs
	lookForLogs   = 2 * time.Second        // between two looks for further logs
	lookForWriter = 2 * time.Second        // between two looks whether a process still writes the log
)

func (x *Index) follow(ctx context.Context, dir string) error {
	lines, err := audit.NewReader(dir, 0)
	for errors.Is(err, fs.ErrNotExist) {
		if !sleep(ctx, waitForLog) {
			return nil
		}
		lines, err = audit.NewReader(dir, 0)
	}
	if err != nil {
		return err
	}
	defer lines.Close()
	f := x.newFollowed(dir, lines)
	for {
		written, err := f.read(ctx)
		if err != nil || ctx.Err() != nil {
			return err
		}
		x.catchUp()
		err = f.wait(ctx, lookForWriter)
		for ; errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil; err = f.wait(ctx, lookForWriter) {
			if now, err := audit.Writing(dir); err == nil && now != written {
				break // what was written last comes first
			}
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// FollowAll reads several logs, and what is appended, until ctx ends. It asks again and again which folders there are, the
// oldest log first. A log that no process writes is read once. Failed has a log that cannot be read.
func (x *Index) FollowAll(ctx context.Context, folders func() []string) {
	known := map[string]bool{}
	var live []*followed
	defer func() {
		for _, f := range live {
			f.lines.Close()
		}
	}()
	var looked time.Time
	for ctx.Err() == nil {
		before, _ := x.Progress()
		var dirs []string
		if time.Since(looked) > lookForLogs {
			dirs, looked = folders(), time.Now()
		}
		for _, dir := range dirs {
			if known[dir] {
				continue
			}
			lines, err := audit.NewReader(dir, 0)
			if errors.Is(err, fs.ErrNotExist) {
				continue // not yet
			}
			known[dir] = true
			if err != nil {
				x.fail(dir, err)
				continue
			}
			if f := x.newFollowed(dir, lines); f.goesOn(ctx) {
				live = append(live, f)
			}
		}
		live = slices.DeleteFunc(live, func(f *followed) bool { return !f.goesOn(ctx) })
		if now, _ := x.Progress(); now.Next != before.Next || !now.CaughtUp {
			x.catchUp()
		}
		sleep(ctx, waitForLog)
	}
}

// goesOn reads what is there, and reports whether there may be more. If not, it closes the log.
func (x *followed) goesOn(ctx context.Context) bool {
	written, err := x.read(ctx)
	if err != nil {
		x.fail(x.dir, err)
	}
	if err == nil && written {
		return true
	}
	x.lines.Close()
	return false
}

func (x *Index) fail(dir string, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.failed[dir] = err
}

// Failed returns why the log in a folder could not be read to its end, or nil.
func (x *Index) Failed(dir string) error {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.failed[dir]
}

// read reads all records that are there, and reports whether a process writes the log. Flows that are still open have no end
// if not.
func (x *followed) read(ctx context.Context) (written bool, err error) {
	written, err = audit.Writing(x.dir)
	past, cancel := context.WithCancel(ctx)
	cancel()
	if err == nil {
		if err = x.wait(past, lookForWriter); err == nil {
			err = logs.Scan(logs.Until(ctx, x.lines), x.add)
		} else if errors.Is(err, context.Canceled) {
			err = nil // there is nothing new
		}
	}
	if err == nil && ctx.Err() == nil && !written {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.cut()
	}
	return written, err
}

// wait waits for a record. It looks for one also if ctx is done.
func (x *followed) wait(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return x.lines.Follow(ctx)
}

// catchUp notes that all records were read.
func (x *Index) catchUp() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.caught = true
	x.announce()
}

// announceEvery is the number of records after which readers are told, while there are many.
const announceEvery = 50_000

func (x *followed) add(_ string, r *record.Record) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.number(r.Seq)
	if r.Time.After(x.last) {
		x.last = r.Time
	}
	switch {
	case r.Kind == record.KindStart:
		x.cut()
		x.addEvent(r)
	case r.Kind == record.KindClose:
		x.end(r)
	case r.Kind == record.KindHeartbeat: // it would hide what happened
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

// number sets next to the number that follows that of a record.
func (x *followed) number(seq int64) {
	if n := len(x.stretches); n > 0 && x.stretches[n-1].log == x.log {
		last := x.stretches[n-1]
		x.next = last.number + seq - last.seq + 1
		return
	}
	if len(x.stretches) == 0 {
		x.base, x.next = seq, seq
	}
	x.stretches = append(x.stretches, stretch{x.next, seq, x.log})
	x.next++
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

func (x *followed) begin(r *record.Record) {
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
	at := x.append(row{time: r.Time.UnixMicro(), flow: flow, shape: x.shapeID(), query: queryOf(r), count: clamp(r.Times()), took: noEnd})
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
func (x *followed) count(row int64, d *count.Counted) {
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
func (x *followed) end(r *record.Record) {
	flow, _ := record.ParseID(r.Flow)
	at, opened := x.open[flow]
	delete(x.open, flow)
	if !opened || at < x.first {
		if r.Decision == nil || r.Dst == nil {
			return
		}
		x.scratch.load(r)
		at = x.append(row{time: r.Time.UnixMicro(), flow: flow, shape: x.shapeID(), query: queryOf(r), count: clamp(r.Times()), took: noEnd})
	} else {
		one := x.at(at)
		x.scratch.parse(x.shapes[one.shape])
		x.scratch.end(r)
		one.shape = x.shapeID()
		if r.HTTP != nil {
			one.query = queryOf(r)
		}
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
func (x *followed) cut() {
	x.counter.Flush()
	for _, at := range x.open {
		if at >= x.first {
			one := x.at(at)
			x.scratch.parse(x.shapes[one.shape])
			x.scratch.Outcome = record.OutcomeCut
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

// queryOf returns the length of the query. A head with a longer one than fits is refused, unless limits allow it.
func queryOf(r *record.Record) uint16 {
	return uint16(min(part(r.HTTP).QueryBytes, math.MaxUint16))
}

func clamp(n int64) uint32 { return uint32(max(0, min(n, math.MaxUint32))) }

// append adds a row and returns its number. It drops the oldest rows if there are too many.
func (x *Index) append(one row) int64 {
	one.number = clamp(x.next - 1 - x.base)
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

// stretchOf returns the stretch of a record. A stretch that is given is that of an earlier record, or the first.
func (x *Index) stretchOf(record int64, from int) int {
	for from+1 < len(x.stretches) && x.stretches[from+1].number <= record {
		from++
	}
	return from
}

func (x *Index) whole(one *row, number int64, at int) Row {
	record := x.base + int64(one.number)
	s := x.stretches[at]
	r := Row{
		Time: one.time, Number: record, Log: x.logs[s.log], Seq: s.seq + record - s.number,
		Flow: one.flow, Shape: uint32(one.shape), Query: int64(one.query), Count: one.count, Up: int64(one.up), Down: int64(one.down),
	}
	if one.took != noEnd {
		r.Ended, r.Took = true, time.Duration(one.took)*time.Millisecond
	}
	if one.up == huge {
		both := x.huge[number]
		r.Up, r.Down = both[0], both[1]
	}
	return r
}

func (x *Index) shapeID() uint16 {
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
	id := uint16(len(x.shapes))
	x.shapes = append(x.shapes, text)
	x.verdicts = append(x.verdicts, strings.Clone(x.scratch.decision.Action))
	x.opens = append(x.opens, x.scratch.Outcome == logs.OutcomeOpen)
	x.ids[text] = id
	return id
}
