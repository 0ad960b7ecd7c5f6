// Package logs reads the audit log. It joins the two records of a flow, filters records and counts
// decisions. The package prints nothing, opens no file and decides nothing. Records hold bytes chosen
// by a sandbox, so the caller escapes them before it shows them.
//
//	decisions := logs.DecisionJoiner{Emit: func(r *record.Record) {
//		if filter.Match(r) {
//			view.Add(r)
//		}
//	}}
//	for each line of the log {
//		r, err := record.Decode(line)
//		decisions.Add(r)
//	}
//	decisions.Flush(logs.OutcomeOpen)
package logs

import (
	"context"
	"io"
	"runtime"
	"sync"
	"unsafe"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/record"
)

// Lines reads the lines of a log in order, see [audit.Reader.Take]. The error is [io.EOF] after the last line; a later call
// may return new lines.
type Lines interface {
	Take(buffer []byte) (audit.Block, error)
}

// Until returns lines that end with ctx.
func Until(ctx context.Context, lines Lines) Lines { return untilDone{ctx, lines} }

type untilDone struct {
	ctx   context.Context
	lines Lines
}

func (u untilDone) Take(buffer []byte) (audit.Block, error) {
	if u.ctx.Err() != nil {
		return audit.Block{}, io.EOF
	}
	return u.lines.Take(buffer)
}

const (
	chunkBytes  = 256 << 10 // maximum text of a chunk
	maxDecoders = 4         // one reader cannot supply more decoders
)

// A chunk is a run of consecutive lines and their records.
type chunk struct {
	buffer  []byte // for block
	block   audit.Block
	lines   []scanned
	memory  []record.Buffer // of the lines that were decoded
	decoded int             // so many of memory are in use
	err     error           // from the line after those, or from the reader; io.EOF if there is none
	last    bool            // there are no lines after these now
	ready   chan struct{}
}

// A scanned line was decoded, or only skimmed.
type scanned struct {
	text    string // "" if it was only skimmed
	raw     []byte
	record  int // in memory
	skimmed skimmed
}

// Scan calls do with every line of the log and its record, one at a time and in order. Both are valid only
// until do returns; a caller that keeps a record clones it with [record.Record.Clone]. Several goroutines decode lines
// in bounded memory. Scan stops at the first error of do or lines and at a line that is not a record.
func Scan(lines Lines, do func(line string, r *record.Record) error) error {
	return ScanSome(lines, nil, do)
}

// ScanSome is like [Scan], but decodes only lines for which may returns true, or all if may is nil. Goroutines call it at
// the same time.
func ScanSome(lines Lines, may func(line []byte) bool, do func(line string, r *record.Record) error) error {
	s := scan{lines: lines, may: may, do: do, retain: func() {}}
	return s.run()
}

// ScanJoined is like [Scan], but passes records completed by j, and only those that f matches. It may be called again for
// lines that were appended meanwhile, with the same filter.
func ScanJoined(lines Lines, j *Joiner, f *Filter, do func(line string, whole *record.Record) error) error {
	j.borrows = true
	defer func() { j.borrows = false }()
	join := func(line string, r *record.Record) error {
		if err := j.wake(r.Flow); err != nil {
			return err
		}
		whole := j.Complete(r)
		j.Follow(r)
		if !f.Match(whole) {
			return nil
		}
		return do(line, whole)
	}
	s := scan{lines: lines, may: f.sieve(), do: join, retain: j.retain, pass: func(line []byte, h skimmed) error {
		r, err := j.pass(line, h)
		if r == nil || err != nil {
			return err
		}
		return join(string(line), r)
	}}
	return s.run()
}

// ScanDecisions calls emit once with each request that f matches and the outcome of its flow, as a [DecisionJoiner] does. Flows
// without an end have the outcome atEnd: [OutcomeOpen] if a process writes the log, else [record.OutcomeCut]. The record and its
// strings are valid only until emit returns: they lie in memory that is used again. Copies of the strings would cost a third
// of the time.
func ScanDecisions(lines Lines, f *Filter, atEnd record.Outcome, emit func(*record.Record)) error {
	t := DecisionJoiner{Emit: func(r *record.Record) {
		if f.Match(r) {
			emit(r)
		}
	}}
	j := &t.joiner
	j.borrows = true
	add := func(line string, r *record.Record) error {
		err := j.wake(r.Flow)
		t.line = line
		t.Add(r)
		t.line = ""
		return err
	}
	s := scan{lines: lines, may: f.decisionSieve(), do: add, retain: j.retain, lends: true, refusals: true, pass: func(line []byte, h skimmed) error {
		var r *record.Record
		var err error
		if t.awaits(line) {
			r, err = record.Decode(line)
		} else if !h.refuses {
			r, err = j.pass(line, h)
		}
		if r != nil {
			t.Add(r)
		}
		return err
	}}
	err := s.run()
	t.Flush(atEnd)
	return err
}

// A scan passes chunks between goroutines. The reader takes a chunk from free and sends it to order and to
// full. A record.Decoder takes it from full; the caller takes it from order and returns it to free. Each channel
// has capacity for all chunks.
type scan struct {
	lines  Lines
	may    func(line []byte) bool                    // reports whether to decode a line; nil: always
	do     func(line string, r *record.Record) error // gets each decoded line
	pass   func(line []byte, h skimmed) error        // gets each line that is skimmed; nil: none is
	retain func()                                    // is called before the memory of delivered lines is used again
	lends  bool                                      // strings of records lie in that memory, if all lines are decoded

	refusals bool // refusals are skimmed, too

	free, full, order chan *chunk
	stop              chan struct{} // closed when the caller is done
}

func (s *scan) run() error {
	s.free, s.full, s.order, s.stop = make(chan *chunk, 64), make(chan *chunk, 64), make(chan *chunk, 64), make(chan struct{})
	decoders := min(runtime.GOMAXPROCS(0), maxDecoders)
	for range 2*decoders + 1 {
		s.free <- &chunk{buffer: make([]byte, chunkBytes), ready: make(chan struct{}, 1)}
	}
	var working sync.WaitGroup
	working.Go(s.read)
	for range decoders {
		working.Go(s.decode)
	}
	err := s.deliver()
	close(s.stop)
	working.Wait()
	return err
}

func (s *scan) read() {
	defer close(s.full)
	defer close(s.order)
	for {
		var c *chunk
		select {
		case c = <-s.free:
		case <-s.stop:
			return
		}
		c.block, c.err = s.lines.Take(c.buffer)
		c.last = c.err == io.EOF
		done := c.err != nil // c is not to be read once it is sent
		s.order <- c
		s.full <- c
		if done {
			return
		}
	}
}

func (s *scan) decode() {
	var form record.Decoder
	for c := range s.full {
		c.lines, c.decoded = c.lines[:0], 0
		shared := ""
		switch { // one string for all records is made faster than one for each
		case s.may == nil && s.lends:
			shared = unsafe.String(unsafe.SliceData(c.block.Rest), len(c.block.Rest))
		case s.may == nil:
			shared = string(c.block.Rest)
		}
		for c.err == nil {
			c.err = s.decodeLine(c, &form, shared)
		}
		c.ready <- struct{}{}
	}
}

// decodeLine takes the next line of c's block. The error is io.EOF if there is none.
func (s *scan) decodeLine(c *chunk, form *record.Decoder, shared string) error {
	rest := len(c.block.Rest)
	line, err := c.block.Next()
	if err != nil {
		return err
	}
	l := scanned{raw: line, record: c.decoded}
	if s.may != nil && !s.may(line) {
		use := unused
		if s.pass != nil {
			l.skimmed, use = skim(line)
		}
		if use == ofFlow || use == refusal && s.refusals {
			c.lines = append(c.lines, l)
		}
		if use != unknown {
			return nil
		}
	}
	if s.may == nil {
		at := len(shared) - rest
		l.text = shared[at : at+len(line)]
	} else {
		l.text = string(line)
	}
	if c.decoded == len(c.memory) {
		c.memory = append(c.memory, record.Buffer{})
	}
	if err := form.Decode(&c.memory[c.decoded], l.text); err != nil {
		return err
	}
	c.decoded++
	c.lines = append(c.lines, l)
	return nil
}

// deliver passes the records to do in order.
func (s *scan) deliver() error {
	for c := range s.order {
		<-c.ready
		err := s.deliverChunk(c)
		s.retain()
		if s.lends {
			clear(c.buffer) // a string that was kept is empty at once, not another record's later
		}
		switch {
		case err != nil:
			return err
		case c.last:
			return nil
		case c.err != io.EOF:
			return c.err
		}
		s.free <- c
	}
	return nil
}

func (s *scan) deliverChunk(c *chunk) error {
	for i := range c.lines {
		l := &c.lines[i]
		var err error
		if l.text == "" {
			err = s.pass(l.raw, l.skimmed)
		} else {
			err = s.do(l.text, &c.memory[l.record].Record)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
