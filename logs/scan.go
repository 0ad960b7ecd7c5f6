// Package logs reads the audit log. It joins the two records of a flow, filters records and counts
// decisions. The package prints nothing, opens no file and decides nothing. Records hold bytes chosen
// by a sandbox, so the caller escapes them before it shows them.
//
//	decisions := logs.Tally{Emit: func(r *record.Record) {
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
	"io"
	"runtime"
	"sync"

	"github.com/egressd/egressd/record"
)

// Lines reads the lines of a log in order, see [audit.Reader]. Next returns a line without its newline,
// valid until the next call. It returns [io.EOF] after the last line; a later call may return new lines.
type Lines interface{ Next() ([]byte, error) }

const (
	chunkBytes  = 256 << 10 // maximum text of a chunk
	chunkLines  = 2048      // maximum lines of a chunk
	maxDecoders = 4         // one reader cannot supply more decoders
)

// A chunk is a run of consecutive lines and their records.
type chunk struct {
	text    []byte
	ends    []int  // end offset of each line in text
	lines   string // text as a string; all records share it
	buffers []record.Buffer
	valid   int   // number of filled buffers
	err     error // from the line after those, or from the reader
	ready   chan struct{}
}

// Scan calls do with every line of the log and its record, one at a time and in order. Both are valid only
// until do returns; a caller that keeps a record clones it with [Clone]. Several goroutines decode lines
// in bounded memory. Scan stops at the first error of do or lines and at a line that is not a record.
func Scan(lines Lines, do func(line string, r *record.Record) error) error {
	return scanWith(lines, do, func() {})
}

// ScanJoined is like [Scan], but passes records completed by j. It may be called again for lines that were
// appended meanwhile.
func ScanJoined(lines Lines, j *Joiner, do func(line string, whole *record.Record) error) error {
	j.borrows = true
	defer func() { j.borrows = false }()
	return scanWith(lines, func(line string, r *record.Record) error {
		whole := j.Complete(r)
		j.Follow(r)
		return do(line, whole)
	}, j.retain)
}

// ScanDecisions calls emit once with each decision and the outcome of its flow, as a [Tally] does. The
// record is valid only until emit returns.
func ScanDecisions(lines Lines, emit func(*record.Record)) error {
	t := Tally{Emit: emit}
	t.joiner.borrows = true
	err := scanWith(lines, func(_ string, r *record.Record) error {
		t.Add(r)
		return nil
	}, t.joiner.retain)
	t.Flush(OutcomeOpen)
	return err
}

// scanWith calls retain before it reuses the memory of delivered records.
func scanWith(lines Lines, do func(string, *record.Record) error, retain func()) error {
	s := scan{
		lines: lines, retain: retain, free: make(chan *chunk, 64), full: make(chan *chunk, 64), order: make(chan *chunk, 64), stop: make(chan struct{}),
	}
	decoders := min(runtime.GOMAXPROCS(0), maxDecoders)
	for range 2*decoders + 1 {
		s.free <- &chunk{ready: make(chan struct{}, 1)}
	}
	var working sync.WaitGroup
	working.Go(s.read)
	for range decoders {
		working.Go(s.decode)
	}
	err := s.deliver(do)
	close(s.stop)
	working.Wait()
	return err
}

// A scan passes chunks between goroutines. The reader takes a chunk from free and sends it to order and to
// full. A record.Decoder takes it from full; the caller takes it from order and returns it to free. Each channel
// has capacity for all chunks.
type scan struct {
	lines             Lines
	retain            func()
	free, full, order chan *chunk
	stop              chan struct{} // closed when the caller is done
}

func (s *scan) read() {
	defer close(s.full)
	defer close(s.order)
	for more := true; more; {
		var c *chunk
		select {
		case c = <-s.free:
		case <-s.stop:
			return
		}
		more = c.fill(s.lines)
		s.order <- c
		s.full <- c
	}
}

// fill reads lines into c. It reports whether more lines may follow.
func (c *chunk) fill(lines Lines) bool {
	c.text, c.ends, c.err = c.text[:0], c.ends[:0], nil
	for len(c.text) < chunkBytes && len(c.ends) < chunkLines {
		line, err := lines.Next()
		if err != nil {
			c.err = err
			return false
		}
		c.text = append(c.text, line...)
		c.ends = append(c.ends, len(c.text))
	}
	return true
}

func (s *scan) decode() {
	var form record.Decoder
	for c := range s.full {
		c.decode(&form)
		c.ready <- struct{}{}
	}
}

// decode fills the buffers. The strings of all records share one string.
func (c *chunk) decode(form *record.Decoder) {
	if len(c.buffers) < len(c.ends) {
		c.buffers = append(c.buffers, make([]record.Buffer, len(c.ends)-len(c.buffers))...)
	}
	start := 0
	c.lines = string(c.text)
	for i, end := range c.ends {
		if err := form.Decode(&c.buffers[i], c.lines[start:end]); err != nil {
			c.valid, c.err = i, err
			return
		}
		start = end
	}
	c.valid = len(c.ends)
}

// deliver passes the records to do in order.
func (s *scan) deliver(do func(string, *record.Record) error) error {
	for c := range s.order {
		<-c.ready
		err := c.deliver(do)
		s.retain()
		switch {
		case err != nil:
			return err
		case c.err == io.EOF:
			return nil
		case c.err != nil:
			return c.err
		}
		s.free <- c
	}
	return nil
}

func (c *chunk) deliver(do func(string, *record.Record) error) error {
	start := 0
	for i := range c.valid {
		if err := do(c.lines[start:c.ends[i]], &c.buffers[i].Record); err != nil {
			return err
		}
		start = c.ends[i]
	}
	return nil
}
