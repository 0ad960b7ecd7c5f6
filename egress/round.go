package egress

import (
	"slices"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"

	"github.com/egressd/egressd/record"
)

// A Round is a batch of messages that a name server received together. AnswerNow and Local collect the records of allowed
// questions, and Write writes all of them at once. One goroutine uses a Round.
//
//	i, err := round.Inquire(peer, question)
//	a, wait, err := i.AnswerNow()
//	… the same with others
//	round.Write()
//	err = i.Written() // before a is told
//	round.Reset()
type Round struct {
	gate    *Gate
	rooms   []*room // of inquiries, those that are under way first
	used    int
	text    []byte // of the records, one after the other
	ends    []int  // of each in text
	records [][]byte

	first    int64 // the seq of the first record, once they are written
	admitted int   // so many of them are
}

// NewRound returns an empty one.
func (g *Gate) NewRound() *Round { return &Round{gate: g} }

// Inquire is [Gate.Inquire] for one of the messages. The inquiry is valid until Reset.
func (r *Round) Inquire(peer sandbox.Peer, q policy.Question) (*Inquiry, error) {
	if r.used == len(r.rooms) {
		r.rooms = append(r.rooms, new(room))
	}
	one := r.rooms[r.used]
	r.used++
	one.inquiry.round = r
	return &one.inquiry, one.inquire(r.gate, peer, q)
}

// add encodes the record of an inquiry that is allowed.
func (r *Round) add(i *Inquiry) {
	f, is := i.flow, recordOf{kind: record.KindDNS}
	f.note(is)
	start := 0
	if n := len(r.ends); n > 0 {
		start = r.ends[n-1]
	}
	e := encoder{Encoder: record.Encoder{Line: r.text[:start]}}
	e.flow(f, is)
	f.gate.mask(e.Line[start:])
	r.text = e.Line
	r.ends = append(r.ends, len(e.Line))
	i.place = len(r.ends)
}

// Write writes the records. [Inquiry.Written] returns the result of each.
func (r *Round) Write() {
	r.admitted = 0
	if len(r.ends) == 0 {
		return
	}
	r.records = r.records[:0]
	start := 0
	for _, end := range r.ends {
		r.records = append(r.records, r.text[start:end])
		start = end
	}
	r.first, r.admitted, _ = r.gate.config.Log.AppendAll(r.records) // Written tells those whose record is not there
}

// Written returns nil once the record of i is written, if it has one in the round. The
// error is a [*Refusal]: what cannot be recorded is not answered.
func (i *Inquiry) Written() error {
	switch f, r := i.flow, i.round; {
	case i.place == 0:
		return nil
	case i.place > r.admitted:
		return f.refusal(unavailable)
	default:
		f.seq = r.first + int64(i.place-1)
		return nil
	}
}

// Reset forgets the messages, and what of them is not written. Inquiries that go on
// have to be taken out by [Inquiry.Leave] before.
func (r *Round) Reset() {
	r.rooms = slices.DeleteFunc(r.rooms, func(one *room) bool { return one.inquiry.round != r })
	r.used, r.text, r.ends, r.admitted = 0, r.text[:0], r.ends[:0], 0
}

// Leave takes an inquiry out of its round, once that is written, so that it can be
// answered later.
func (i *Inquiry) Leave() { i.round, i.place = nil, 0 }
