package exchange

import (
	"slices"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
)

// A messageRedactor redacts the credentials of a host from the messages that the upstream sends in a WebSocket
// (RFC 6455 §5.2). It searches each message as a whole, across frames and across control frames in between.
// Text that may begin a credential is held back until its message ends at the latest, so the reader of a
// message never waits for the next message. Malformed frames are refused; RFC 6455 forbids clients to accept
// them.
type messageRedactor struct {
	exchange *Exchange
	message  *secret.Redactor
	control  *secret.Redactor

	frames frameReader
	out    []byte  // valid until the next call
	queue  []piece // what came from where message holds back
	queued int     // bytes of pieces that are known
}

// A piece is a part of the stream: bytes, or how many message has yet to return.
type piece struct {
	known []byte
	owed  int
}

// messageFilter returns what looks at the messages of an exchange, or nil where its host
// has no credential.
func (x *h1Exchange) messageFilter() bodyFilter {
	if x.redaction == nil {
		return nil
	}
	return &messageRedactor{exchange: x.Exchange, message: x.redaction.NewRedactor(), control: x.redaction.NewRedactor()}
}

func (m *messageRedactor) scan(b []byte) ([]byte, error) {
	m.out = m.out[:0]
	defer redactTurn(m.exchange.Flow, len(b))()
	for len(b) > 0 {
		n := 1
		if m.frames.left > 0 {
			n = int(min(uint64(len(b)), m.frames.left))
			m.read(b[:n])
		} else if head, ok := m.frames.next(b[0]); !ok {
			return nil, m.unreadable()
		} else if head != nil {
			m.begin(head)
		}
		b = b[n:]
		if m.queued > egress.HeldMost {
			return nil, m.exchange.Flow.Failed(policy.ResponseRefused, "too much came between the parts of a message that waits to be searched for the credentials of this host")
		}
	}
	m.exchange.noted(m.message.Hits() > 0 || m.control.Hits() > 0)
	return m.out, nil
}

func (m *messageRedactor) unreadable() error {
	return m.exchange.Flow.Failed(policy.ResponseRefused, "the destination's frames are none of a WebSocket, and cannot be searched for the credentials of this host")
}

func (m *messageRedactor) flush() ([]byte, error) {
	m.out = m.out[:0]
	m.emit(m.control.Flush())
	m.give(m.message.Flush())
	m.emit(m.frames.head)
	return m.out, nil
}

// sent implements [bodyFilter]. Few bytes are held, so they do not count.
func (m *messageRedactor) sent() {}

func (m *messageRedactor) begin(head []byte) {
	m.emit(head)
	if m.frames.left == 0 {
		m.end()
	}
}

// read takes some of a frame's payload.
func (m *messageRedactor) read(p []byte) {
	m.frames.left -= uint64(len(p))
	if m.frames.control {
		m.emit(m.control.Redact(p))
	} else {
		m.owe(len(p))
		m.give(m.message.Redact(p))
	}
	if m.frames.left == 0 {
		m.end()
	}
}

func (m *messageRedactor) end() {
	switch {
	case m.frames.control:
		m.emit(m.control.Flush())
	case m.frames.last:
		m.give(m.message.Flush())
	}
}

// emit has bytes go on as they are, in their turn.
func (m *messageRedactor) emit(p []byte) {
	last := len(m.queue) - 1
	switch {
	case last < 0:
		m.out = append(m.out, p...)
		return
	case m.queue[last].owed > 0:
		m.queue = append(m.queue, piece{known: slices.Clone(p)})
	default:
		m.queue[last].known = append(m.queue[last].known, p...)
	}
	m.queued += len(p)
}

// owe notes that message was given n bytes.
func (m *messageRedactor) owe(n int) {
	if last := len(m.queue) - 1; last >= 0 && m.queue[last].owed > 0 {
		m.queue[last].owed += n
		return
	}
	m.queue = append(m.queue, piece{owed: n})
}

// give takes what message returned, and has all go on that waited for it alone.
func (m *messageRedactor) give(p []byte) {
	for len(m.queue) > 0 {
		one := &m.queue[0]
		if one.owed > 0 {
			n := min(one.owed, len(p))
			m.out = append(m.out, p[:n]...)
			p = p[n:]
			if one.owed -= n; one.owed > 0 {
				return
			}
		} else {
			m.out = append(m.out, one.known...)
			m.queued -= len(one.known)
		}
		*one = piece{}
		m.queue = m.queue[1:] // and not moved, or it costs as much as it is long
	}
}
