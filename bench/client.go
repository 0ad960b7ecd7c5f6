//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"syscall"
)

// A client is one blocking connection of the load generator: a descriptor and
// nothing else. The runtime's poller and its timers would cost more than what
// is measured.
type client struct{ fd int }

// patienceSeconds is how long a client waits for any one answer.
const patienceSeconds = 10

// dial connects to a port of 127.0.0.1.
func dial(port int) (client, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return client{}, fmt.Errorf("socket: %w", err)
	}
	c := client{fd}
	if err := c.connect(port); err != nil {
		c.close()
		return client{}, fmt.Errorf("connect: %w", err)
	}
	return c, nil
}

func (c client) connect(port int) error {
	patience := syscall.Timeval{Sec: patienceSeconds}
	return errors.Join(
		setNoDelay(c.fd),
		syscall.SetsockoptTimeval(c.fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &patience),
		syscall.SetsockoptTimeval(c.fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &patience),
		c.connectTo(&syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: port}),
	)
}

// connectTo connects, and goes on to where a signal came between: what has a time
// limit the kernel does not begin again by itself (signal(7)).
func (c client) connectTo(to syscall.Sockaddr) error {
	for {
		if err := syscall.Connect(c.fd, to); err != syscall.EINTR {
			return err
		}
	}
}

// close resets the connection.
func (c client) close() { resetFD(c.fd) }

func (c client) write(b []byte) error {
	for len(b) > 0 {
		n, err := syscall.Write(c.fd, b)
		if err != nil && err != syscall.EINTR {
			return fmt.Errorf("write: %w", err)
		}
		b = b[max(n, 0):]
	}
	return nil
}

var errEnded = errors.New("connection ended early")

// read reads at least one byte.
func (c client) read(b []byte) (int, error) {
	for {
		n, err := syscall.Read(c.fd, b)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return 0, fmt.Errorf("read: %w", err)
		case n == 0:
			return 0, errEnded
		default:
			return n, nil
		}
	}
}

// A reply is an HTTP answer, as far as the load generator cares.
type reply struct {
	status int
	length int  // of the body as announced, -1 where it is not
	closes bool // the connection ends with it
	body   []byte
}

var errFraming = errors.New("answer is not framed as expected")

// parseReply reads the HTTP answer that b holds; complete is false where more
// bytes are due. A body counts where its length is announced; bytes behind it
// are an error, and a chunked body is one too.
func parseReply(b []byte) (r reply, complete bool, err error) {
	end := bytes.Index(b, []byte("\r\n\r\n"))
	if end < 0 {
		return r, false, nil
	}
	if err := r.head(b[:end+2]); err != nil {
		return r, false, err
	}
	r.body = b[end+4:]
	if len(r.body) > max(r.length, 0) && (r.length >= 0 || r.status == 200) {
		return r, false, errFraming
	}
	return r, len(r.body) >= r.length, nil
}

// head reads the lines of an answer's head, each with its end.
func (r *reply) head(b []byte) error {
	r.length = -1
	line, rest, _ := bytes.Cut(b, []byte("\r\n"))
	version, status, _ := bytes.Cut(line, []byte(" "))
	if !bytes.HasPrefix(version, []byte("HTTP/1.")) || len(status) < 3 {
		return fmt.Errorf("not an HTTP answer: %.60q", line)
	}
	var err error
	if r.status, err = strconv.Atoi(string(status[:3])); err != nil {
		return fmt.Errorf("not an HTTP answer: %.60q", line)
	}
	r.closes = string(version) == "HTTP/1.0"
	for len(rest) > 0 && err == nil {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		err = r.field(line)
	}
	return err
}

func (r *reply) field(line []byte) (err error) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimSpace(value)
	switch {
	case is(name, "Content-Length"):
		r.length, err = strconv.Atoi(string(value))
	case is(name, "Transfer-Encoding") && r.status == 200:
		err = errFraming
	case is(name, "Connection"):
		r.closes = is(value, "close") || r.closes && !is(value, "keep-alive")
	}
	return err
}

func is(b []byte, s string) bool { return bytes.EqualFold(b, []byte(s)) }
