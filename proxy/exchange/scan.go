package exchange

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"io"
	"slices"
	"strings"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/fair"
)

// A bodyFilter looks at what passes one way, and holds back what may begin a canary or a credential. An error is a
// [*egress.Refusal], and then nothing more may pass.
type bodyFilter interface {
	// scan takes the next bytes, and returns those that may pass, valid until the next call.
	scan(b []byte) ([]byte, error)
	// flush returns what was held back, at the end.
	flush() ([]byte, error)
	// sent says that the returned bytes have been written, so their memory may be used again.
	sent()
}

// withRest returns the last part and what was held back. A body that was held back as a
// whole is not copied.
func withRest(l bodyFilter, part []byte) ([]byte, error) {
	last := slices.Clone(part)
	rest, err := l.flush()
	if len(last) == 0 {
		return rest, err
	}
	return append(last, rest...), err
}

const (
	compressedMost = 1 << 20  // of a compressed body that is held back until it was searched
	decodedMost    = 16 << 20 // of what it says that is searched
)

// A bodyScanner is the body of a request. One that is compressed is held back until
// it is complete, or longer than is searched.
type bodyScanner struct {
	flow       *egress.Flow
	guard      *egress.Guard
	compressed bool
	memory     *fair.Reservation // for held
	turn       scanTurn
	begun      bool
	held       []byte // of a compressed body
	handedOut  bool   // held was returned, and is not written yet
}

// newBodyScanner returns what looks at the body of a request of a flow, or nil where
// there are no canaries. coding are the values of Content-Encoding. room is for a body that is held
// back; the caller ends it.
func newBodyScanner(flow *egress.Flow, coding []string, room *fair.Reservation, turns scanTurn) bodyFilter {
	guard := flow.Guard("body")
	if guard == nil {
		return nil
	}
	return &bodyScanner{flow: flow, guard: guard, compressed: slices.ContainsFunc(coding, canUnpack), memory: room, turn: turns}
}

func canUnpack(coding string) bool {
	switch strings.ToLower(strings.TrimSpace(coding)) {
	case "gzip", "x-gzip", "deflate", "zstd":
		return true
	}
	return false
}

func (l *bodyScanner) scan(b []byte) ([]byte, error) {
	if !l.begun && len(b) > 0 {
		l.begun = true
		l.compressed = l.compressed || bytes.HasPrefix(b, []byte{0x1f, 0x8b}) || isZstd(b) // RFC 1952 §2.3.1
	}
	if !l.compressed {
		return l.pass(b)
	}
	if !l.memory.Grow(int64(len(b))) {
		return nil, l.flow.Overfull()
	}
	if l.held = append(l.held, b...); len(l.held) <= compressedMost {
		return nil, nil
	}
	return l.unpack()
}

// pass searches a part that is not held back.
func (l *bodyScanner) pass(b []byte) ([]byte, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if err := l.turn.begin(); err != nil {
		return nil, err
	}
	defer l.turn.end()
	return l.guard.Pass(b)
}

func (l *bodyScanner) flush() ([]byte, error) {
	if !l.compressed {
		return l.guard.Rest(), nil
	}
	out, err := l.unpack()
	if err != nil {
		return nil, err
	}
	return append(out, l.guard.Rest()...), nil // where something is held back, out is nobody else's
}

// sent implements [bodyFilter]. A body that was held back counts until then: how long its
// upstream leaves it waiting is not for egressd to say.
func (l *bodyScanner) sent() {
	if l.handedOut {
		l.handedOut = false
		l.memory.Clear()
	}
}

// unpack scans the decoded text of a compressed body and releases the body. A body that cannot be decoded is
// as unreadable to the upstream.
func (l *bodyScanner) unpack() ([]byte, error) {
	l.compressed = false
	if err := l.turn.begin(); err != nil {
		return nil, err
	}
	defer l.turn.end()
	if err := l.searchUnpacked(); err != nil {
		return nil, err
	}
	said := decodedScanner{guard: l.guard, turn: &l.turn}
	for part := range slices.Chunk(l.held, scannedPerTurn) {
		if _, err := said.Write(part); err != nil {
			return nil, err
		}
	}
	whole := l.held
	l.held, l.handedOut = nil, true
	return l.guard.Release(whole), nil
}

// searchUnpacked searches in the turn that l has, and gives it up in between.
func (l *bodyScanner) searchUnpacked() error {
	said := decodedScanner{guard: l.flow.Guard("body, decompressed"), turn: &l.turn}
	decoders := []func(io.Reader) (io.Reader, error){
		func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
		func(r io.Reader) (io.Reader, error) { return zlib.NewReader(r) },
		func(r io.Reader) (io.Reader, error) { return flate.NewReader(r), nil },
	}
	if isZstd(l.held) {
		decoders = []func(io.Reader) (io.Reader, error){func(r io.Reader) (io.Reader, error) { return newZstd(r) }}
	}
	for _, open := range decoders {
		in := compressedReader{whole: l.held, turn: &l.turn}
		r, err := open(bufio.NewReaderSize(&in, unpackAhead))
		if err == nil {
			io.CopyN(&said, r, decodedMost)
			if c, ok := r.(io.Closer); ok {
				c.Close()
			}
		}
		if over := cmp.Or(in.err, said.err); over != nil || err == nil {
			return over
		}
	}
	return nil
}

// A compressedReader is what a decompressor reads, in turns: it may say nothing for long.
type compressedReader struct {
	whole []byte // what is left of it
	turn  *scanTurn
	err   error // of the turns, whatever a decompressor makes of it
}

// unpackAhead is what it reads at once, of its own accord 4 KiB: far less than a turn, so
// that what others wait for is not read ahead.
const unpackAhead = 256

func (u *compressedReader) Read(p []byte) (int, error) {
	if len(u.whole) == 0 {
		return 0, io.EOF
	}
	n := min(len(p), len(u.whole), scannedPerTurn/unpackWork)
	if u.err == nil {
		u.err = u.turn.spend(n * unpackWork)
	}
	if u.err != nil {
		return 0, u.err
	}
	copy(p, u.whole[:n])
	u.whole = u.whole[n:]
	return n, nil
}

// A decodedScanner searches what is written to it, which is short.
type decodedScanner struct {
	guard *egress.Guard
	turn  *scanTurn
	err   error // of the turns, or of what was found
}

func (s *decodedScanner) Write(p []byte) (int, error) {
	if s.err = s.turn.spend(len(p)); s.err == nil {
		s.err = s.guard.See(p)
	}
	return len(p), s.err
}
