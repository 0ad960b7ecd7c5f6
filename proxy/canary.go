package proxy

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/egressd/egressd/egress"
)

// A leaving looks at what goes to an upstream and holds back what may begin a canary.
// An error is a [*egress.Refusal], and then nothing more may go.
type leaving interface {
	// part takes the next bytes, and returns those that may go, valid until the next
	// call.
	part(b []byte) ([]byte, error)
	// rest returns what was held back, when no more comes.
	rest() ([]byte, error)
}

// leave returns what may go on of a part that goes up. Of what goes down, or where
// there are no canaries, that is all of it.
func (s *striker) leave(part []byte, last bool) ([]byte, error) {
	if s == nil || s.leaving == nil {
		return part, nil
	}
	out, err := s.leaving.part(part)
	if err != nil || !last {
		return out, err
	}
	out = slices.Clone(out)
	rest, err := s.leaving.rest()
	return append(out, rest...), err
}

const (
	packedMost   = 1 << 20  // of a compressed body that is held back until it was searched
	unpackedMost = 16 << 20 // of what it says that is searched
)

// A leavingBody is the body of a request. One that is compressed is held back until
// it is complete, or longer than is searched.
type leavingBody struct {
	flow   *egress.Flow
	guard  *egress.Guard
	packed bool
	room   *lease // of whole
	begun  bool
	whole  []byte // of one that is packed
}

// leavingBody returns what looks at the body of a request of a flow, or nil where
// there are no canaries. coding are the values of Content-Encoding, and room is what a
// body that is held back takes; whoever calls it ends that.
func bodyLeaving(flow *egress.Flow, coding []string, room *lease) leaving {
	guard := flow.Guard("body")
	if guard == nil {
		return nil
	}
	return &leavingBody{flow: flow, guard: guard, packed: slices.ContainsFunc(coding, canUnpack), room: room}
}

func canUnpack(coding string) bool {
	switch strings.ToLower(strings.TrimSpace(coding)) {
	case "gzip", "x-gzip", "deflate":
		return true
	}
	return false
}

func (l *leavingBody) part(b []byte) ([]byte, error) {
	if !l.begun && len(b) > 0 {
		l.begun = true
		l.packed = l.packed || bytes.HasPrefix(b, []byte{0x1f, 0x8b}) // RFC 1952 §2.3.1
	}
	if !l.packed {
		return l.guard.Pass(b)
	}
	if !l.room.more(int64(len(b))) {
		return nil, l.flow.Overfull()
	}
	if l.whole = append(l.whole, b...); len(l.whole) <= packedMost {
		return nil, nil
	}
	return l.unpack()
}

func (l *leavingBody) rest() ([]byte, error) {
	var out []byte
	if l.packed {
		var err error
		if out, err = l.unpack(); err != nil {
			return nil, err
		}
	}
	return append(slices.Clone(out), l.guard.Rest()...), nil
}

// unpack searches what a compressed body says, and lets it go on. What cannot be
// unpacked says nothing to whoever gets it either.
func (l *leavingBody) unpack() ([]byte, error) {
	l.packed = false
	said := searcher{l.flow.Guard("body, decompressed")}
	for _, open := range []func(io.Reader) (io.Reader, error){
		func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
		func(r io.Reader) (io.Reader, error) { return zlib.NewReader(r) },
		func(r io.Reader) (io.Reader, error) { return flate.NewReader(r), nil },
	} {
		r, err := open(bytes.NewReader(l.whole))
		if err != nil {
			continue
		}
		if _, err = io.CopyN(said, r, unpackedMost); refusalIn(err) != nil {
			return nil, err
		}
		break
	}
	whole := l.whole
	l.whole = nil
	l.room.free()
	return l.guard.Pass(whole)
}

// A searcher searches what is written to it.
type searcher struct{ guard *egress.Guard }

func (s searcher) Write(p []byte) (int, error) {
	_, err := s.guard.Pass(p)
	return len(p), err
}

// A guardedBody is the body of a request on HTTP/2, up to the first canary in it.
type guardedBody struct {
	io.ReadCloser
	leaving leaving
	found   func() // told when one was
	ready   []byte // and not yet read
	err     error
}

func (b *guardedBody) Read(p []byte) (int, error) {
	for len(b.ready) == 0 && b.err == nil && len(p) > 0 {
		n, err := b.ReadCloser.Read(p)
		b.err = err
		part, over := b.leaving.part(p[:n])
		if over == nil && errors.Is(err, io.EOF) {
			part = slices.Clone(part)
			var rest []byte
			rest, over = b.leaving.rest()
			part = append(part, rest...)
		}
		if over != nil {
			b.found()
			b.err = over
			return 0, over
		}
		b.ready = slices.Clone(part)
	}
	if len(b.ready) == 0 {
		return 0, b.err
	}
	n := copy(p, b.ready)
	b.ready = b.ready[n:]
	return n, nil
}
