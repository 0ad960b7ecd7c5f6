//go:build linux

package main

import (
	"bytes"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// An epollFloor is the floor of an event loop: one goroutine that knows CONNECT alone, and carries the bytes of all
// tunnels through one buffer.
type epollFloor struct {
	epoll    int
	listener int
	conns    map[int]*floorConn // by descriptor
	buf      []byte
}

// A floorConn is one side of a tunnel.
type floorConn struct {
	fd         int
	peer       *floorConn // nil: the head of CONNECT is not read yet
	connecting bool       // to the origin
	unsent     []byte     // what the socket did not take
}

// serveEpollFloor serves port of 127.0.0.1 until epoll fails.
func serveEpollFloor(port string) error {
	number, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	listener, _, err := listenRaw(number)
	if err != nil {
		return err
	}
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("epoll_create1: %w", err)
	}
	f := &epollFloor{epoll: epoll, listener: listener, conns: make(map[int]*floorConn), buf: make([]byte, 1<<18)}
	if err := f.control(syscall.EPOLL_CTL_ADD, listener, syscall.EPOLLIN); err != nil {
		return err
	}
	events := make([]syscall.EpollEvent, 128)
	for {
		n, err := syscall.EpollWait(epoll, events, -1)
		if err != nil && err != syscall.EINTR {
			return fmt.Errorf("epoll_wait: %w", err)
		}
		for _, event := range events[:max(n, 0)] {
			f.serve(int(event.Fd))
		}
	}
}

func (f *epollFloor) control(op, fd int, events uint32) error {
	return syscall.EpollCtl(f.epoll, op, fd, &syscall.EpollEvent{Events: events, Fd: int32(fd)})
}

// add takes a new descriptor into the loop.
func (f *epollFloor) add(c *floorConn, events uint32) bool {
	if setNoDelay(c.fd) != nil || f.control(syscall.EPOLL_CTL_ADD, c.fd, events) != nil {
		return false
	}
	f.conns[c.fd] = c
	return true
}

func (f *epollFloor) serve(fd int) {
	c := f.conns[fd]
	switch {
	case fd == f.listener:
		client, _, err := syscall.Accept4(fd, syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
		if err == nil && !f.add(&floorConn{fd: client}, syscall.EPOLLIN) {
			_ = syscall.Close(client) // nobody is told: the client counts it
		}
	case c == nil: // its peer ended in this round
	case c.connecting:
		f.established(c)
	case len(c.unsent) > 0:
		f.send(c, nil)
	case c.peer == nil:
		f.connect(c)
	default:
		f.carry(c)
	}
}

// connect reads the head of CONNECT, which comes in one piece from the load generator, and begins to connect.
func (f *epollFloor) connect(c *floorConn) {
	n, _ := syscall.Read(c.fd, f.buf)
	words := bytes.Fields(f.buf[:max(n, 0)])
	if len(words) < 2 || string(words[0]) != "CONNECT" {
		f.drop(c)
		return
	}
	host, port, err := net.SplitHostPort(string(words[1]))
	number, notNumber := strconv.Atoi(port)
	if err != nil || notNumber != nil {
		f.drop(c)
		return
	}
	if host == deniedName {
		f.send(c, []byte("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"))
		return
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		f.drop(c)
		return
	}
	up := &floorConn{fd: fd, peer: c, connecting: true}
	c.peer = up
	err = syscall.Connect(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: number})
	if err != nil && err != syscall.EINPROGRESS || !f.add(up, syscall.EPOLLOUT) {
		f.drop(c)
	}
}

// established tells the client of a connection.
func (f *epollFloor) established(up *floorConn) {
	failed, err := syscall.GetsockoptInt(up.fd, syscall.SOL_SOCKET, syscall.SO_ERROR)
	if err != nil || failed != 0 || f.control(syscall.EPOLL_CTL_MOD, up.fd, syscall.EPOLLIN) != nil {
		f.drop(up)
		return
	}
	up.connecting = false
	f.send(up.peer, []byte("HTTP/1.1 200 OK\r\n\r\n"))
}

// carry gives the other side what c has sent.
func (f *epollFloor) carry(c *floorConn) {
	n, err := syscall.Read(c.fd, f.buf)
	switch {
	case err == syscall.EAGAIN || err == syscall.EINTR:
	case n <= 0:
		f.drop(c)
	case c.peer.connecting: // the load generator waits for the answer to CONNECT
		f.drop(c)
	default:
		f.send(c.peer, f.buf[:n])
	}
}

// send writes what is unsent and b. Where the socket takes no more, c waits until it does, and its peer is not read.
func (f *epollFloor) send(c *floorConn, b []byte) {
	waited := len(c.unsent) > 0
	if waited {
		b = append(c.unsent, b...)
	}
	n, err := syscall.Write(c.fd, b)
	if err != nil && err != syscall.EAGAIN {
		f.drop(c)
		return
	}
	c.unsent = bytes.Clone(b[max(n, 0):])
	if waits := len(c.unsent) > 0; waits != waited {
		mine, peers := uint32(syscall.EPOLLIN), uint32(syscall.EPOLLIN)
		if waits {
			mine, peers = syscall.EPOLLOUT, 0
		}
		if f.control(syscall.EPOLL_CTL_MOD, c.fd, mine) != nil || c.peer != nil && f.control(syscall.EPOLL_CTL_MOD, c.peer.fd, peers) != nil {
			f.drop(c)
		}
	}
}

// drop ends both sides.
func (f *epollFloor) drop(c *floorConn) {
	for _, side := range []*floorConn{c, c.peer} {
		if side != nil {
			delete(f.conns, side.fd)
			_ = syscall.Close(side.fd)
		}
	}
}
