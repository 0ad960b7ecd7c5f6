package proxy

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

// A countedBody counts the bytes of a request's body that go up, and fails beyond the byte
// budget.
type countedBody struct {
	io.ReadCloser
	answer *streamWriter
	passes func(n int) error // asked about each part
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.answer.moved()
	if over := b.passes(n); over != nil {
		return 0, over
	}
	return n, err
}

// A declaredBody is the body of a request as the library reads it. The library compares it with
// the declared length, and reports a difference as an error without a type.
type declaredBody struct {
	io.ReadCloser
	failing *atomic.Bool // is set by any error
}

func (b *declaredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.failing.Store(true)
	}
	return n, err
}

// An emptyBody is that of a response whose status has no content (RFC 9110 §6.4.1). Its
// Content-Length does not count bytes that come, and the library misses them.
type emptyBody struct{ io.ReadCloser }

func (b emptyBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n == 0 && errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return n, err
}

// A struckBody is a response's body without the credential that its request
// carried. When it is over, its trailer is struck as well.
type redactedBody struct {
	io.ReadCloser
	filter *bodyFilter
	resp   *http.Response
	ready  []byte // struck, and not yet read
	err    error
}

func (b *redactedBody) Read(p []byte) (int, error) {
	if b.filter == nil {
		n, err := b.ReadCloser.Read(p)
		b.ended(err)
		return n, err
	}
	for len(b.ready) == 0 && b.err == nil {
		n, err := b.ReadCloser.Read(p)
		part := b.filter.redact(p[:n])
		if errors.Is(err, io.EOF) {
			part = b.filter.redactLast(part)
		}
		b.err = err
		b.ended(err)
		if len(part) <= len(p) && (n > 0 || len(part) > 0) {
			if copied := copy(p, part); copied > 0 {
				return copied, nil
			}
		}
		b.ready = append([]byte(nil), part...)
	}
	if len(b.ready) == 0 {
		return 0, b.err
	}
	n := copy(p, b.ready)
	b.ready = b.ready[n:]
	return n, nil
}

func (b *redactedBody) ended(err error) {
	if errors.Is(err, io.EOF) {
		b.filter.header(b.resp.Trailer)
	}
}
