package sink

import (
	"bytes"
	"crypto/sha256"

	"github.com/egressd/egressd/logs/export"
	"github.com/egressd/egressd/record"
)

// Maximum size of a batch. A sink has one batch at a time.
const (
	batchRecords = 512
	batchBytes   = 1 << 20
)

// A batch is a sequence of records and the texts encoded from them.
type batch struct {
	from, next int64 // sequence numbers of the first record and of the record after the last
	entries    []export.Entry
	bytes      int64             // length of the texts
	last       [sha256.Size]byte // hash of the last record's line

	ends []recordEnd // one for each record
}

// A recordEnd marks the end of a record's entries.
type recordEnd struct {
	seq     int64
	entries int
	sum     [sha256.Size]byte
}

// add appends a record; each line of text is an entry.
func (b *batch) add(r *record.Record, stored, text []byte) {
	for line := range bytes.Lines(text) {
		line = bytes.Clone(bytes.TrimSuffix(line, []byte("\n")))
		b.entries = append(b.entries, export.Entry{Record: r, Text: line})
		b.bytes += int64(len(line)) + 1
	}
	b.next, b.last = r.Seq+1, sha256.Sum256(stored)
	b.ends = append(b.ends, recordEnd{r.Seq, len(b.entries), b.last})
}

// halves splits a batch of at least two records into two.
func (b *batch) halves() (first, second *batch) {
	i := len(b.ends)/2 - 1
	cut := b.ends[i]
	first = &batch{from: b.from, next: cut.seq + 1, entries: b.entries[:cut.entries], last: cut.sum, ends: b.ends[:i+1]}
	second = &batch{from: cut.seq + 1, next: b.next, entries: b.entries[cut.entries:], last: b.last}
	for _, e := range b.ends[i+1:] {
		second.ends = append(second.ends, recordEnd{e.seq, e.entries - cut.entries, e.sum})
	}
	for _, half := range []*batch{first, second} {
		for _, e := range half.entries {
			half.bytes += int64(len(e.Text)) + 1
		}
	}
	return first, second
}
