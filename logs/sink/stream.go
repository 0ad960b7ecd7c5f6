package sink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/egressd/egressd/logs/export"
)

// unsureBytes exceeds the data that a receiver's kernel holds unread. Linux grows the window of a
// connection to at most 6 MiB.
const unsureBytes = 8 << 20

// A stream sends framed entries over a persistent connection and reconnects when it ends. The receiver
// sends no answers, so a batch counts as received when its kernel has acknowledged every byte.
type stream struct {
	network, address string
	secure           *tls.Config // nil for plain TCP
	frame            func([]byte, export.EncodedRecord) []byte

	conn   net.Conn
	plain  net.Conn // connection below TLS
	raw    syscall.Conn
	ended  context.Context
	end    context.CancelCauseFunc
	buffer []byte
}

func newStream(network, address string, secure *tls.Config, frame func([]byte, export.EncodedRecord) []byte) *stream {
	return &stream{network: network, address: address, secure: secure, frame: frame, ended: context.Background()}
}

func (t *stream) send(ctx context.Context, b *batch) error {
	if len(b.entries) == 0 {
		return nil
	}
	if t.conn == nil {
		if err := t.connect(ctx); err != nil {
			return err
		}
	}
	t.buffer = t.buffer[:0]
	for _, e := range b.entries {
		t.buffer = t.frame(t.buffer, e)
	}
	deadline, _ := ctx.Deadline()
	if err := t.conn.SetWriteDeadline(deadline); err != nil {
		return t.broken(err)
	}
	conn := t.conn // the callback may run after t.conn is replaced
	defer context.AfterFunc(ctx, func() { conn.SetWriteDeadline(time.Unix(1, 0)) })()
	if _, err := t.conn.Write(t.buffer); err != nil {
		return t.broken(err)
	}
	return t.broken(t.arrived(ctx))
}

func (t *stream) connect(ctx context.Context) error {
	conn, err := (&net.Dialer{Timeout: sendWithin / 3}).DialContext(ctx, t.network, t.address)
	if err != nil {
		return err
	}
	raw, ok := conn.(syscall.Conn)
	if !ok {
		conn.Close()
		return fmt.Errorf("%s: not a socket", t.address)
	}
	t.plain = conn
	if t.secure != nil {
		over := tls.Client(conn, t.secure)
		if err := over.HandshakeContext(ctx); err != nil {
			conn.Close()
			return err
		}
		conn = over
	}
	t.conn, t.raw = conn, raw
	t.ended, t.end = context.WithCancelCause(context.Background())
	go watch(conn, t.end)
	return nil
}

// watch reads and discards data until the receiver closes the connection.
func watch(conn net.Conn, end context.CancelCauseFunc) {
	if _, err := io.Copy(io.Discard, conn); err != nil {
		end(errReset)
		return
	}
	end(errGone)
}

// arrived waits until the receiver has acknowledged all written bytes.
func (t *stream) arrived(ctx context.Context) error {
	for wait := 50 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		left, err := unsent(t.raw)
		if err != nil || left == 0 {
			return err
		}
		select {
		case <-t.ended.Done():
			return errReset // closed with unread data
		case <-ctx.Done():
			return fmt.Errorf("%d bytes were not taken in time: %w", left, os.ErrDeadlineExceeded)
		case <-time.After(wait):
		}
	}
}

// broken closes a failed connection. TLS cannot continue after a write timeout, and on plain TCP the
// received part is unknown.
func (t *stream) broken(err error) error {
	if err != nil {
		t.plain.Close() // closing TLS first would block on a receiver that does not read
		t.close()
	}
	return err
}

func (t *stream) life() context.Context { return t.ended }
func (t *stream) unsure() int64         { return unsureBytes }

func (t *stream) close() {
	if t.conn == nil {
		return
	}
	t.conn.Close()
	t.end(errGone)
	t.conn, t.ended = nil, context.Background()
}

// A packets target sends each entry as a datagram. UDP reports no loss. A local datagram socket accepts or
// refuses each datagram.
type packets struct {
	networks []string // tried in order
	address  string
	frame    func([]byte, export.EncodedRecord) []byte
	conn     net.Conn
	buffer   []byte
}

func (t *packets) send(ctx context.Context, b *batch) error {
	if t.conn == nil {
		if err := t.connect(ctx); err != nil {
			return err
		}
	}
	deadline, _ := ctx.Deadline()
	if err := t.conn.SetWriteDeadline(deadline); err != nil {
		return t.broken(err)
	}
	conn := t.conn
	defer context.AfterFunc(ctx, func() { conn.SetWriteDeadline(time.Unix(1, 0)) })()
	for _, e := range b.entries {
		t.buffer = t.frame(t.buffer[:0], e)
		if t.conn.RemoteAddr().Network() == "unix" { // a stream needs line ends
			t.buffer = append(t.buffer, '\n')
		}
		_, err := t.conn.Write(t.buffer)
		switch {
		case errors.Is(err, syscall.EMSGSIZE) && len(b.ends) > 1:
			return &refusedError{"it is too large for a datagram"}
		case errors.Is(err, syscall.EMSGSIZE):
			return &refusedError{fmt.Sprintf("its %d bytes are too many for a datagram", len(t.buffer))}
		case err != nil:
			return t.broken(err)
		}
	}
	return nil
}

func (t *packets) connect(ctx context.Context) (err error) {
	for _, network := range t.networks {
		t.conn, err = (&net.Dialer{Timeout: sendWithin / 3}).DialContext(ctx, network, t.address)
		if !errors.Is(err, syscall.EPROTOTYPE) {
			break
		}
	}
	if err != nil {
		t.conn = nil
	}
	return err
}

func (t *packets) broken(err error) error {
	t.close()
	return err
}

func (t *packets) life() context.Context { return context.Background() }
func (t *packets) unsure() int64         { return unsureBytes }

func (t *packets) close() {
	if t.conn != nil {
		t.conn.Close()
		t.conn = nil
	}
}
