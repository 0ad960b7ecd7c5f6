package egress

import (
	"slices"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"

	"github.com/egressd/egressd/record"
)

// A Batch is the messages that a name server received together. AnswerNow and Local collect the records of allowed
// questions, and Write writes all of them at once. One goroutine uses a Batch.
//
//	i, err := batch.Inquire(peer, question)
//	a, wait, err := i.AnswerNow()
//	… the same with others
//	batch.Write()
//	err = i.Written() // before a is sent
//	batch.Reset()
type Batch struct {
	gate      *Gate
	inquiries []*inquiryMemory // those in use first
	used      int
	text      []byte // of the records, one after the other
	ends      []int  // of each in text
	records   [][]byte

	first    int64 // the seq of the first record, once they are written
	admitted int   // so many of them are
}

// NewBatch returns an empty one.
func (n *Names) NewBatch() *Batch { return &Batch{gate: n.gate} }

// Inquire is [Names.Inquire] for one of the messages. The inquiry is valid until Reset.
func (b *Batch) Inquire(peer sandbox.Peer, q policy.DNSQuery) (*Inquiry, error) {
	if b.used == len(b.inquiries) {
		b.inquiries = append(b.inquiries, new(inquiryMemory))
	}
	m := b.inquiries[b.used]
	b.used++
	m.inquiry.batch = b
	return &m.inquiry, m.inquire(b.gate, peer, q)
}

// add encodes the record of an inquiry that is allowed.
func (b *Batch) add(i *Inquiry) {
	f, is := i.flow, recordOf{kind: record.KindDNS}
	f.gate.Records.count(&f.attempt, is)
	start := 0
	if n := len(b.ends); n > 0 {
		start = b.ends[n-1]
	}
	e := encoder{Encoder: record.Encoder{Line: b.text[:start]}}
	e.flow(&f.attempt, is)
	f.gate.canaries.mask(e.Line[start:])
	b.text = e.Line
	b.ends = append(b.ends, len(e.Line))
	i.position = len(b.ends)
}

// Write writes the records. [Inquiry.Written] returns the result of each.
func (b *Batch) Write() {
	b.admitted = 0
	if len(b.ends) == 0 {
		return
	}
	b.records = b.records[:0]
	start := 0
	for _, end := range b.ends {
		b.records = append(b.records, b.text[start:end])
		start = end
	}
	b.first, b.admitted, _ = b.gate.config.Log.AppendAll(b.records) // Written reports the records that are missing
}

// Written returns nil once the record of i is written, or if the batch has no record of i. The error is a [*Refusal]:
// a question without a record gets no answer.
func (i *Inquiry) Written() error {
	switch f, b := i.flow, i.batch; {
	case i.position == 0:
		return nil
	case i.position > b.admitted:
		return f.refusal(unavailable)
	default:
		f.seq = b.first + int64(i.position-1)
		return nil
	}
}

// Reset forgets the messages, with records that are not written. Take inquiries that continue out with
// [Inquiry.Leave] before.
func (b *Batch) Reset() {
	b.inquiries = slices.DeleteFunc(b.inquiries, func(m *inquiryMemory) bool { return m.inquiry.batch != b })
	b.used, b.text, b.ends, b.admitted = 0, b.text[:0], b.ends[:0], 0
}

// Leave takes an inquiry out of its batch after Write, so that it can be answered later.
func (i *Inquiry) Leave() { i.batch, i.position = nil, 0 }
