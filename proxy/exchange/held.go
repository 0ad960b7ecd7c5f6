package exchange

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/policy"
)

// A heldBody is what was read of the body of a request before the request is decided. It stays in memory until the request
// is over: a later policy may have to read it again. It is for one goroutine at a time.
type heldBody struct {
	from   io.Reader
	length int64    // that the request announces, -1 where it does not
	coding []string // the values of Content-Encoding
	most   int64    // bytes
	memory *fair.Reservation
	turn   scanTurn
	bytes  []byte
	ended  bool
	body   *policy.Body // once ended
}

const (
	heldFirst = 16 << 10 // bytes of memory of a held body at first
	startMost = 64 << 10 // bytes that are held for a rule about the beginning of a body
)

// hold prepares to hold the body of a request of f that from reads, until wanted ends. length is what the request announces,
// or -1, and coding are its values of Content-Encoding. The caller releases the body.
func (s *Forwarder) hold(wanted context.Context, f *egress.Flow, from io.Reader, length int64, coding []string) *heldBody {
	return &heldBody{
		from: from, length: length, coding: coding, most: int64(s.Limits.BodyBytes),
		memory: s.BodyMemory.Reserve(f.Holder(), f.Sandbox()), turn: s.ScanTurn(wanted, f),
	}
}

// readOn does what [egress.RequestReader] wants of ReadBody. It calls moved before each read.
func (b *heldBody) readOn(whole bool, moved func()) (*policy.Body, *policy.Decision) {
	if whole && b.length > b.most {
		return nil, b.tooLarge()
	}
	for begun := false; !b.ended && (whole || !begun); begun = true {
		if refused := b.grow(whole); refused != nil {
			return nil, refused
		}
		moved()
		n, err := b.from.Read(b.bytes[len(b.bytes):cap(b.bytes)])
		b.bytes = b.bytes[:len(b.bytes)+n]
		switch {
		case errors.Is(err, io.EOF):
			b.ended = true
		case err != nil:
			return nil, brokenOff(err)
		case n == 0:
			begun = false
		}
		if int64(len(b.bytes)) > b.most {
			return nil, b.tooLarge()
		}
	}
	if !b.ended {
		return &policy.Body{Bytes: b.bytes}, nil
	}
	if b.body == nil {
		b.body = &policy.Body{Bytes: b.bytes, Ended: true}
		b.body.Content, b.body.Problem = b.content()
	}
	return b.body, nil
}

const (
	undoneMost  = 100     // bytes that one byte of a compressed body may stand for, on average
	undoneAhead = 4 << 10 // bytes that a decoder reads at once
)

// content undoes the content coding. A body is in one piece: a server may read only the first of several.
func (b *heldBody) content() (content []byte, problem string) {
	name, ok := codingOf(b.coding)
	switch {
	case !ok:
		return nil, "its Content-Encoding is none that egressd reads"
	case name == "":
		return b.bytes, ""
	case b.turn.begin() != nil:
		return nil, "it waited too long to be decompressed"
	}
	defer b.turn.end()
	if name == "zstd" {
		return b.unzstd()
	}
	return b.ungzip()
}

// undo reads what a decoder says.
func (b *heldBody) undo(r io.Reader) (content []byte, problem string) {
	most := min(b.most, undoneMost*int64(len(b.bytes)))
	for {
		if have, room := int64(len(content)), int64(cap(content)); have == room {
			want := min(max(heldFirst, 2*room), most+1)
			if have > most || !b.memory.Grow(want-room) {
				return nil, "it is too long once it is decompressed"
			}
			content = append(make([]byte, 0, want), content...)
		}
		n, err := r.Read(content[len(content):min(cap(content), len(content)+scannedPerTurn)])
		content = content[:len(content)+n]
		switch {
		case errors.Is(err, io.EOF) && int64(len(content)) <= most:
			return content, ""
		case err != nil:
			return nil, notAsSaid
		case b.turn.spend(n) != nil:
			return nil, "it waited too long to be decompressed"
		}
	}
}

// grow makes room for more. The memory is counted before it is there.
func (b *heldBody) grow(whole bool) *policy.Decision {
	have, room := int64(len(b.bytes)), int64(cap(b.bytes))
	switch {
	case !whole && have >= startMost:
		return b.tooLarge()
	case have < room:
		return nil
	}
	want := min(max(heldFirst, 2*room), b.most+1) // one more shows a body that is too long
	if !b.memory.Grow(want - room) {
		d := overfull
		return &d
	}
	b.bytes = append(make([]byte, 0, want), b.bytes...)
	return nil
}

// fromStart returns the whole body, with what was read of it in front.
func (b *heldBody) fromStart() io.Reader {
	return io.MultiReader(bytes.NewReader(b.bytes), b.from)
}

// release frees the memory, once the request is over. A nil heldBody has none.
func (b *heldBody) release() {
	if b != nil {
		b.memory.Release()
	}
}

func (b *heldBody) tooLarge() *policy.Decision {
	return &policy.Decision{
		Class: policy.BodyTooLarge, Rule: "limits", Layer: policy.Builtin,
		Reason: fmt.Sprintf("a rule reads the body of this request, and it is longer than the %d bytes of one that is held (limits.body_bytes)", b.most),
	}
}

var overfull = policy.Decision{
	Class: policy.TooManyFlows, Rule: "limits", Layer: policy.Builtin,
	Reason: "too much of what the sandbox sends is held back to be decided",
}

// brokenOff refuses a request whose body could not be read to its end.
func brokenOff(err error) *policy.Decision {
	d := policy.Decision{Class: policy.MalformedRequest, Rule: "parser", Layer: policy.Builtin, Reason: "the body of the request broke off"}
	var bad *http1.MalformedError
	switch {
	case errors.As(err, &bad):
		d.Reason = bad.Problem
	case errors.Is(err, os.ErrDeadlineExceeded):
		d.Reason = "the body of the request did not come in time"
	}
	return &d
}

// ReadBody implements [egress.RequestReader].
func (x *Exchange) ReadBody(f *egress.Flow, whole bool) (*policy.Body, *policy.Decision) {
	if x.held == nil {
		x.held = x.Client.Forwarder.hold(x.Context, f, x.Body, x.Length, x.Fields.Values("Content-Encoding"))
	}
	return x.held.readOn(whole, x.BeforeBody)
}

// wholeBody returns the body as it is sent, for a credential that signs it.
func (x *Exchange) wholeBody() ([]byte, *policy.Decision) {
	if x.Length == 0 || x.Body == nil {
		return []byte{}, nil
	}
	body, refused := x.ReadBody(x.Flow, true)
	switch {
	case refused != nil:
		return nil, refused
	case body.Bytes == nil:
		return []byte{}, nil
	}
	return body.Bytes, nil
}
