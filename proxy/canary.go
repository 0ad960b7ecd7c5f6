package proxy

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"

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
	// taken is told that nobody needs any more what was returned.
	taken()
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
	return withRest(s.leaving, out)
}

// withRest returns the last part and what was held back. A body that was held back as a
// whole is not copied.
func withRest(l leaving, part []byte) ([]byte, error) {
	last := slices.Clone(part)
	rest, err := l.rest()
	if len(last) == 0 {
		return rest, err
	}
	return append(last, rest...), err
}

// taken is told that what leave returned has gone on.
func (s *striker) taken() {
	if s != nil && s.leaving != nil {
		s.leaving.taken()
	}
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
	turns  search
	begun  bool
	whole  []byte // of one that is packed
	given  bool   // whole was returned, and not yet taken
}

// leavingBody returns what looks at the body of a request of a flow, or nil where
// there are no canaries. coding are the values of Content-Encoding, and room is what a
// body that is held back takes; whoever calls it ends that.
func bodyLeaving(flow *egress.Flow, coding []string, room *lease, turns search) leaving {
	guard := flow.Guard("body")
	if guard == nil {
		return nil
	}
	return &leavingBody{flow: flow, guard: guard, packed: slices.ContainsFunc(coding, canUnpack), room: room, turns: turns}
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
		return l.pass(b)
	}
	if !l.room.more(int64(len(b))) {
		return nil, l.flow.Overfull()
	}
	if l.whole = append(l.whole, b...); len(l.whole) <= packedMost {
		return nil, nil
	}
	return l.unpack()
}

// pass searches a part that is not held back.
func (l *leavingBody) pass(b []byte) ([]byte, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if err := l.turns.begin(); err != nil {
		return nil, err
	}
	defer l.turns.end()
	return l.guard.Pass(b)
}

func (l *leavingBody) rest() ([]byte, error) {
	if !l.packed {
		return l.guard.Rest(), nil
	}
	out, err := l.unpack()
	if err != nil {
		return nil, err
	}
	return append(out, l.guard.Rest()...), nil // where something is held back, out is nobody else's
}

// taken implements [leaving]. A body that was held back counts until then: how long its
// upstream leaves it waiting is not for egressd to say.
func (l *leavingBody) taken() {
	if l.given {
		l.given = false
		l.room.free()
	}
}

// unpack searches what a compressed body says, and lets it go on. What cannot be
// unpacked says nothing to whoever gets it either.
func (l *leavingBody) unpack() ([]byte, error) {
	l.packed = false
	if err := l.turns.begin(); err != nil {
		return nil, err
	}
	defer l.turns.end()
	if err := l.searchUnpacked(); err != nil {
		return nil, err
	}
	said := searcher{guard: l.guard, turns: &l.turns}
	for part := range slices.Chunk(l.whole, searchedAtOnce) {
		if _, err := said.Write(part); err != nil {
			return nil, err
		}
	}
	whole := l.whole
	l.whole, l.given = nil, true
	return l.guard.Release(whole), nil
}

// searchUnpacked searches in the turn that l has, and gives it up in between.
func (l *leavingBody) searchUnpacked() error {
	said := searcher{guard: l.flow.Guard("body, decompressed"), turns: &l.turns}
	for _, open := range []func(io.Reader) (io.Reader, error){
		func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
		func(r io.Reader) (io.Reader, error) { return zlib.NewReader(r) },
		func(r io.Reader) (io.Reader, error) { return flate.NewReader(r), nil },
	} {
		in := unpacking{whole: l.whole, turns: &l.turns}
		r, err := open(bufio.NewReaderSize(&in, unpackAhead))
		if err == nil {
			io.CopyN(&said, r, unpackedMost)
		}
		if over := cmp.Or(in.err, said.err); over != nil || err == nil {
			return over
		}
	}
	return nil
}

// An unpacking is what a decompressor reads, in turns: it may say nothing for long.
type unpacking struct {
	whole []byte // what is left of it
	turns *search
	err   error // of the turns, whatever a decompressor makes of it
}

// unpackAhead is what it reads at once, of its own accord 4 KiB: far less than a turn, so
// that what others wait for is not read ahead.
const unpackAhead = 256

func (u *unpacking) Read(p []byte) (int, error) {
	if len(u.whole) == 0 {
		return 0, io.EOF
	}
	n := min(len(p), len(u.whole), searchedAtOnce/unpackWork)
	if u.err == nil {
		u.err = u.turns.spend(n * unpackWork)
	}
	if u.err != nil {
		return 0, u.err
	}
	copy(p, u.whole[:n])
	u.whole = u.whole[n:]
	return n, nil
}

// A searcher searches what is written to it, which is short.
type searcher struct {
	guard *egress.Guard
	turns *search
	err   error // of the turns, or of what was found
}

func (s *searcher) Write(p []byte) (int, error) {
	if s.err = s.turns.spend(len(p)); s.err == nil {
		s.err = s.guard.See(p)
	}
	return len(p), s.err
}

// A guardedBody is the body of a request on HTTP/2, up to the first canary in it. Its
// reader may be left waiting after the request is over: see drop.
type guardedBody struct {
	io.ReadCloser
	found  func() // told when one was, or the body was refused otherwise
	forget func() // has nobody wait for a turn to search it

	mu      sync.Mutex // guards what follows, and is not held while more is read
	leaving leaving    // nil once it was dropped
	ready   []byte     // and not yet read
	err     error
}

func (b *guardedBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.ready) == 0 && b.err == nil && len(p) > 0 {
		b.mu.Unlock()
		n, err := b.ReadCloser.Read(p)
		b.mu.Lock()
		b.read(p[:n], err)
	}
	if len(b.ready) == 0 {
		return 0, b.err
	}
	n := copy(p, b.ready)
	if b.ready = b.ready[n:]; len(b.ready) == 0 {
		b.ready = nil
		b.leaving.taken()
	}
	return n, nil
}

// read takes what was read. b.mu is held.
func (b *guardedBody) read(p []byte, err error) {
	if b.leaving == nil {
		return
	}
	part, over := b.leaving.part(p)
	if over == nil && errors.Is(err, io.EOF) {
		part, over = withRest(b.leaving, part)
	}
	if over != nil {
		if refusalIn(over) != nil {
			b.found()
		}
		part, err = nil, over
	}
	b.ready, b.err = part, err
}

// drop lets go of what is held, which nobody gets any more. A nil body holds nothing.
func (b *guardedBody) drop() {
	if b == nil {
		return
	}
	b.forget() // or the mutex may be held for long
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leaving, b.ready, b.err = nil, nil, net.ErrClosed
}
