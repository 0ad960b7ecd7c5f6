package logs

import (
	"io"
	"runtime"
	"sync"

	"github.com/egressd/egressd/egress"
)

// Lines are the lines of a log, in their order. Next returns the next one
// without its newline, valid until the next call, and [io.EOF] at the end, where
// there may be more later. [audit.Reader] has them.
type Lines interface{ Next() ([]byte, error) }

const (
	chunkBytes = 256 << 10 // of lines that are decoded at once
	chunkLines = 2048      // at most
	mostHands  = 4         // that decode: more than that is more than one reader has lines for
)

// A chunk is some lines that follow each other, and what they say.
type chunk struct {
	text  []byte
	ends  []int  // of the lines in text
	lines string // text, when it is decoded
	slots []slot
	valid int   // how many slots are filled
	err   error // of the line after those, or of what reads lines
	ready chan struct{}
}

// Scan calls do with every line that there is now and what it says, in their
// order and never at the same time. Both are valid until do returns: who keeps a
// record clones it, see [Clone]. The lines are decoded on several processors at a
// time, in bounded memory. An error of do, of lines, or of a line that is no
// record ends it.
func Scan(lines Lines, do func(line string, r *egress.Record) error) error {
	return scanWith(lines, do, func() {})
}

// ScanJoined is Scan with records that j has completed. It may be called again
// with the lines that came since.
func ScanJoined(lines Lines, j *Joiner, do func(line string, whole *egress.Record) error) error {
	j.lent = true
	defer func() { j.lent = false }()
	return scanWith(lines, func(line string, r *egress.Record) error {
		whole := j.Complete(r)
		j.Follow(r)
		return do(line, whole)
	}, j.settle)
}

// ScanDecisions calls emit with each decision once and with what its flow came to,
// as a [Tally] does. What is lent is lent until emit returns.
func ScanDecisions(lines Lines, emit func(*egress.Record)) error {
	t := Tally{Emit: emit}
	t.joiner.lent = true
	err := scanWith(lines, func(_ string, r *egress.Record) error {
		t.Add(r)
		return nil
	}, t.joiner.settle)
	t.Flush(OutcomeOpen)
	return err
}

// scanWith calls settle before the memory of records that were handed out is
// used again.
func scanWith(lines Lines, do func(string, *egress.Record) error, settle func()) error {
	s := scan{
		lines: lines, settle: settle, free: make(chan *chunk, 64), full: make(chan *chunk, 64), order: make(chan *chunk, 64), stop: make(chan struct{}),
	}
	hands := min(runtime.GOMAXPROCS(0), mostHands)
	for range 2*hands + 1 {
		s.free <- &chunk{ready: make(chan struct{}, 1)}
	}
	var working sync.WaitGroup
	working.Go(s.read)
	for range hands {
		working.Go(s.decode)
	}
	err := s.hand(do)
	close(s.stop)
	working.Wait()
	return err
}

// A scan is the work of one Scan: chunks go from free, by the one that reads, to
// order and full, by one that decodes, to the caller, and back. The channels have
// room for all chunks that there are.
type scan struct {
	lines             Lines
	settle            func()
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

// fill reads lines into c, and reports whether there may be more.
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
	var form canonical
	for c := range s.full {
		c.decode(&form)
		c.ready <- struct{}{}
	}
}

// decode fills the slots. All strings of the records are parts of one.
func (c *chunk) decode(form *canonical) {
	if len(c.slots) < len(c.ends) {
		c.slots = append(c.slots, make([]slot, len(c.ends)-len(c.slots))...)
	}
	start := 0
	c.lines = string(c.text)
	for i, end := range c.ends {
		if err := form.decode(&c.slots[i], c.lines[start:end]); err != nil {
			c.valid, c.err = i, err
			return
		}
		start = end
	}
	c.valid = len(c.ends)
}

// hand gives the caller one record after the other.
func (s *scan) hand(do func(string, *egress.Record) error) error {
	for c := range s.order {
		<-c.ready
		err := c.hand(do)
		s.settle()
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

func (c *chunk) hand(do func(string, *egress.Record) error) error {
	start := 0
	for i := range c.valid {
		if err := do(c.lines[start:c.ends[i]], &c.slots[i].Record); err != nil {
			return err
		}
		start = c.ends[i]
	}
	return nil
}
