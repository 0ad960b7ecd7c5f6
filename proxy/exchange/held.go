package exchange

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/policy"
)

// A heldBody is what was read of the body of a request before the request is decided. It stays in memory until the request
// is over: a later policy may have to read it again. It is for one goroutine at a time.
type heldBody struct {
	from   io.Reader
	length int64 // that the request announces, -1 where it does not
	most   int64 // bytes
	memory *Reservation
	body   policy.Body
}

const (
	heldFirst = 16 << 10 // bytes of memory of a held body at first
	startMost = 64 << 10 // bytes that are held for a rule about the beginning of a body
)

// hold prepares to hold the body of a request of f that from reads. length is what the request announces, or -1. The caller
// releases the body.
func (s *Forwarder) hold(f *egress.Flow, from io.Reader, length int64) *heldBody {
	return &heldBody{from: from, length: length, most: int64(s.Limits.BodyBytes), memory: s.BodyMemory.Reserve(f.Holder(), f.Sandbox())}
}

// readOn does what an [egress.ReadBody] has to. It calls moved before each read.
func (b *heldBody) readOn(whole bool, moved func()) (*policy.Body, *policy.Decision) {
	if whole && b.length > b.most {
		return nil, b.tooLarge()
	}
	for begun := false; !b.body.Ended && (whole || !begun); begun = true {
		if refused := b.grow(whole); refused != nil {
			return nil, refused
		}
		moved()
		n, err := b.from.Read(b.body.Bytes[len(b.body.Bytes):cap(b.body.Bytes)])
		b.body.Bytes = b.body.Bytes[:len(b.body.Bytes)+n]
		switch {
		case errors.Is(err, io.EOF):
			b.body.Ended = true
		case err != nil:
			return nil, brokenOff(err)
		case n == 0:
			begun = false
		}
		if int64(len(b.body.Bytes)) > b.most {
			return nil, b.tooLarge()
		}
	}
	read := b.body
	return &read, nil
}

// grow makes room for more. The memory is counted before it is there.
func (b *heldBody) grow(whole bool) *policy.Decision {
	have, room := int64(len(b.body.Bytes)), int64(cap(b.body.Bytes))
	switch {
	case !whole && have >= startMost:
		return b.tooLarge()
	case have < room:
		return nil
	}
	want := min(max(heldFirst, 2*room), b.most+1) // one more shows a body that is too long
	if !b.memory.grow(want - room) {
		d := overfull
		return &d
	}
	b.body.Bytes = append(make([]byte, 0, want), b.body.Bytes...)
	return nil
}

// fromStart returns the whole body, with what was read of it in front.
func (b *heldBody) fromStart() io.Reader {
	return io.MultiReader(bytes.NewReader(b.body.Bytes), b.from)
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

// readBody is the [egress.ReadBody] of an exchange.
func (x *Exchange) readBody(f *egress.Flow, whole bool) (*policy.Body, *policy.Decision) {
	if x.held == nil {
		x.held = x.Client.Forwarder.hold(f, x.Body, x.Length)
	}
	return x.held.readOn(whole, x.BeforeBody)
}
