//go:build linux

package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

// An operation does one unit of work on its own connections, blocking, and
// checks the answer. One goroutine calls do again and again, and close once.
type operation struct {
	do    func() error
	close func()
}

// A starter prepares the operation of one worker.
type starter func(*job, *tally) (operation, error)

func nothing() {}

// startConnect opens a tunnel and closes it.
func startConnect(j *job, _ *tally) (operation, error) {
	s := connectScript(j)
	buf := make([]byte, 1<<14)
	return operation{func() error {
		c, err := s.open(buf)
		if err == nil {
			c.close()
		}
		return err
	}, nothing}, nil
}

// startPing sends a byte there and back in one tunnel.
func startPing(j *job, _ *tally) (operation, error) {
	s := pingScript(j)
	buf := make([]byte, 1<<14)
	c, err := s.open(buf)
	if err != nil {
		return operation{}, err
	}
	ping := &s.steps[s.keep]
	return operation{func() error { return c.do(ping, buf) }, c.close}, nil
}

// startBulk reads what the bulk origin sends in one tunnel. An operation is
// one read.
func startBulk(j *job, t *tally) (operation, error) {
	c, err := j.tunnel(j.Origins.Bulk).open(make([]byte, 1<<14))
	if err != nil {
		return operation{}, err
	}
	if err := c.firstByte(j.Hello); err != nil {
		c.close()
		return operation{}, err
	}
	buf := make([]byte, 1<<18)
	return operation{func() error {
		n, err := c.read(buf)
		if err != nil {
			return err
		}
		if buf[0] != bulkByte(t.bytes) || buf[n-1] != bulkByte(t.bytes+int64(n)-1) {
			err = errors.New("wrong bytes in the download")
		}
		t.bytes += int64(n)
		return err
	}, c.close}, nil
}

// firstByte sends the hello and reads the one byte that answers it; what
// follows is the download's.
func (c client) firstByte(hello []byte) error {
	if err := c.write(hello); err != nil {
		return err
	}
	var answer [1]byte
	if _, err := c.read(answer[:]); err != nil {
		return err
	}
	_, err := exactly(sum(hello))(answer[:])
	return err
}

// startTLS: CONNECT, handshake with a verified certificate, one request.
func startTLS(j *job, _ *tally) (operation, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(j.Origins.Cert) {
		return operation{}, errors.New("no certificate of the origin")
	}
	config := clientTLS(serverName(j.Host), roots)
	s := j.tunnel(j.Origins.TLS)
	buf := make([]byte, 1<<14)
	return operation{func() error {
		c, err := s.open(buf)
		if err != nil {
			return err
		}
		defer c.close()
		return fetch(tls.Client(blockingConn{c}, config), buf)
	}, nothing}, nil
}

// fetch requests the page over TLS and checks it.
func fetch(t *tls.Conn, buf []byte) error {
	if _, err := t.Write([]byte("GET / HTTP/1.1\r\nHost: " + originName + "\r\n\r\n")); err != nil {
		return err
	}
	n := 0
	for n < len(page) {
		m, err := t.Read(buf[n:])
		if err != nil {
			return err
		}
		n += m
	}
	if string(buf[:n]) != page {
		return fmt.Errorf("wrong answer: %.60q", buf[:n])
	}
	return nil
}

// A blockingConn is a client for crypto/tls, which wants a [net.Conn] and
// uses Read and Write of it.
type blockingConn struct{ client }

func (c blockingConn) Read(b []byte) (int, error)  { return c.read(b) }
func (c blockingConn) Write(b []byte) (int, error) { return len(b), c.write(b) }
func (c blockingConn) Close() error                { return nil } // the operation closes
func (c blockingConn) LocalAddr() net.Addr         { return nil }
func (c blockingConn) RemoteAddr() net.Addr        { return nil }

// Deadlines are the socket's own timeouts.
func (c blockingConn) SetDeadline(time.Time) error      { return syscall.ENOTSUP }
func (c blockingConn) SetReadDeadline(time.Time) error  { return syscall.ENOTSUP }
func (c blockingConn) SetWriteDeadline(time.Time) error { return syscall.ENOTSUP }
