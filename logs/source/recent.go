package source

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/record"
)

const (
	recentBytes  = 2 << 20 // that completion reads: the user waits for it after each key
	recentValues = 50      // that completion offers
)

// Values returns the values of a filter key in the recent records that begin with a text, the most
// frequent first. It leaves out values that a shell or a terminal could act on.
func (s *Source) Values(key, begin string) []string {
	if key == "run" {
		all := append([]string{"last"}, s.Runs()...)
		return all[:min(len(all), recentValues)]
	}
	field := logs.Field(key)
	if key == "flow" || key == "id" {
		field = func(r *record.Record) string { return r.Flow }
	}
	if field == nil {
		return nil
	}
	var counts logs.Ranking
	s.recent(func(r *record.Record) {
		if v := field(r); v != "" && strings.HasPrefix(v, begin) && harmless(v) {
			counts.Add(v, r.Times(), r)
		}
	})
	var values []string
	for _, e := range counts.Top(recentValues) {
		values = append(values, e.Value)
	}
	return values
}

// harmless reports whether s can stand on a command line without quotes, and is short enough to read.
func harmless(s string) bool {
	return len(s) <= 100 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789./_-:+@%") == ""
}

// recent calls do with the records in the last bytes of the log. It skips what it cannot read, because
// completion cannot show an error.
func (s *Source) recent(do func(*record.Record)) {
	dir, err := s.Directory()
	if err != nil {
		return
	}
	paths, err := audit.Segments(dir)
	if err != nil {
		return
	}
	left := int64(recentBytes)
	for _, path := range slices.Backward(paths) {
		text := tailOf(path, left)
		for line := range bytes.Lines(text) {
			if r, err := record.Decode(bytes.TrimSuffix(line, []byte("\n"))); err == nil {
				do(r)
			}
		}
		if left -= int64(len(text)); left <= 0 {
			return
		}
	}
}

// endingBytes bounds what Ending reads; a record is shorter.
const endingBytes = 256 << 10

// Ending returns a reader of the log in dir that begins after the records that are there now.
func Ending(dir string) (*RecordReader, error) {
	paths, err := audit.Segments(dir)
	if err != nil {
		return nil, err
	}
	for _, path := range slices.Backward(paths) {
		text := bytes.TrimSuffix(tailOf(path, endingBytes), []byte("\n"))
		if r, err := record.Decode(text[bytes.LastIndexByte(text, '\n')+1:]); err == nil {
			return At(dir, r.Seq+1)
		}
	}
	return At(dir, 0)
}

// tailOf returns the whole lines in the last most bytes of a file.
func tailOf(path string, most int64) []byte {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO would block until somebody writes
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	from := max(0, info.Size()-most)
	text := make([]byte, info.Size()-from)
	if n, err := f.ReadAt(text, from); err != nil && err != io.EOF {
		return nil
	} else if text = text[:n]; from > 0 {
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	return text
}
