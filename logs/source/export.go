package source

import (
	"bufio"
	"errors"
	"io"

	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/export"
	"github.com/egressd/egressd/record"
)

// Export writes the header and what passes the filter. It remembers only the flows that are
// open, so that a filter sees of their ends what it sees of them in egressd log. Records of several logs have no origin.
func (l *RecordReader) Export(w io.Writer, f *logs.Filter, header string, encode export.Encoder) error {
	out := bufio.NewWriterSize(w, 64<<10)
	out.WriteString(header) // Flush returns its error
	from := export.Here()
	from.Log = l.Origin()
	var joiner logs.Joiner
	var text []byte
	err := l.Each(func(stored string, r *record.Record) error {
		whole := joiner.Complete(r)
		joiner.Follow(r.Clone()) // r is lent
		if !f.Match(whole) {
			return nil
		}
		text = encode(text[:0], r, []byte(stored), from)
		_, err := out.Write(text)
		return err
	})
	return errors.Join(err, out.Flush())
}
