package exchange

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/http1"
)

// A PassingBody is a message's body as it passes, part by part: searched for canaries or struck of credentials, and counted.
// Its reader may be left waiting after the exchange is over: see [PassingBody.Drop].
type PassingBody struct {
	from   io.Reader
	closer io.Closer         // of what it is read from, or nil
	filter bodyFilter        // nil: all of it passes as it is
	forget func()            // ends a wait of filter; may be nil
	passes func(n int) error // is asked before n bytes pass
	moved  func()            // is told when some have come

	mu      sync.Mutex // guards what follows, and is not held while more is read
	ready   []byte     // and not yet read
	err     error      // behind that
	closed  bool       // nobody wants the rest
	dropped bool
}

// newBody returns what passes of a body. filter may be nil.
func newBody(from io.Reader, filter bodyFilter, passes func(n int) error, moved func()) *PassingBody {
	return &PassingBody{from: from, filter: filter, passes: passes, moved: moved}
}

// allPass is a PassingBody's passes where nothing is counted before it passes.
func allPass(int) error { return nil }

// Read implements [io.Reader]. An error of passes or of a search is a [*egress.Refusal]; then no more passes.
func (b *PassingBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.ready) == 0 && b.err == nil && len(p) > 0 {
		b.mu.Unlock()
		n, err := b.from.Read(p)
		if n > 0 {
			b.moved()
		}
		b.mu.Lock()
		b.take(p[:n], err)
	}
	if len(b.ready) == 0 {
		return 0, b.err
	}
	n := min(len(p), len(b.ready))
	if over := b.passes(n); over != nil {
		b.ready, b.err = nil, over
		return 0, over
	}
	copy(p, b.ready)
	if b.ready = b.ready[n:]; len(b.ready) == 0 {
		b.ready = nil
		if b.filter != nil {
			b.filter.sent()
		}
	}
	return n, nil
}

// take takes what was read. b.mu is held.
func (b *PassingBody) take(part []byte, err error) {
	if b.dropped {
		return
	}
	last := errors.Is(err, io.EOF)
	var over error
	if b.filter != nil {
		if part, over = b.filter.scan(part); over == nil && last {
			part, over = withRest(b.filter, part)
		}
	}
	switch {
	case over != nil:
		part, err = nil, over
	case b.closed && err != nil && !last:
		err = net.ErrClosed
	}
	b.ready, b.err = part, err
}

// Drop lets go of what is held, which nobody gets any more. It returns why the body failed before, or nil. A nil body holds
// nothing.
func (b *PassingBody) Drop() error {
	if b == nil {
		return nil
	}
	if b.forget != nil {
		b.forget() // or the mutex may be held for long
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	failed := b.err
	if errors.Is(failed, io.EOF) || errors.Is(failed, net.ErrClosed) {
		failed = nil
	}
	b.filter, b.ready, b.dropped = nil, nil, true
	if b.err == nil {
		b.err = net.ErrClosed
	}
	return failed
}

// Close closes what the body is read from, if that can be closed. That the rest cannot be read is no failure then.
func (b *PassingBody) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	if b.closer == nil {
		return nil
	}
	return b.closer.Close()
}

// Pass copies a body, each part as soon as it is there. wrote is told of the bytes that are out. An error of reading is a
// [*egress.Refusal] or an incompleteBody.
func (s *Forwarder) Pass(to io.Writer, from *PassingBody, wrote func(n int)) error {
	buf := s.Buffers.Get().(*[BodyBuffer]byte)
	defer s.Buffers.Put(buf)
	for {
		n, err := from.Read(buf[:])
		if n > 0 {
			n, err := to.Write(buf[:n])
			if wrote(n); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case refusalIn(err) != nil:
			return err
		case err != nil:
			return incompleteBody{err}
		}
	}
}

const BodyBuffer = 32 << 10

// Together tells what an exchange comes to whose request's body may have failed. A
// client that left in the middle of it gets no answer, nor does one that has
// part of a response already.
func Together(received, sent error) error {
	var bad *http1.MalformedError
	var cut incompleteBody
	var late unanswerable
	switch {
	case refusalIn(sent) != nil:
		return overBudget(received, sent)
	case errors.As(sent, &bad) && (received == nil || errors.As(received, &late)):
		return unanswerable{sent}
	case errors.As(received, &late):
		return received
	case errors.As(sent, &bad):
		return sent
	case errors.As(sent, &cut) && (errors.Is(sent, os.ErrDeadlineExceeded) || errors.Is(sent, net.ErrClosed)):
		return unanswerable{sent}
	case errors.As(sent, &cut):
		return unanswerable{incompleteUpload{sent}}
	}
	return received
}

// overBudget tells an exchange whose body was more than may go up from what its
// other half came to. One that has part of a response cannot be answered any more.
func overBudget(received, sent error) error {
	var late unanswerable
	switch {
	case refusalIn(sent) == nil:
		return received
	case received == nil, errors.As(received, &late):
		return unanswerable{sent}
	}
	return sent
}

// An incompleteUpload is the body of a request whose client has left.
type incompleteUpload struct{ error }

func (e incompleteUpload) Unwrap() error { return e.error }

// incompleteBody is a body that its sender did not finish.
type incompleteBody struct{ error }

func (e incompleteBody) Unwrap() error { return e.error }

func refusalIn(err error) (r *egress.Refusal) {
	errors.As(err, &r)
	return r
}
