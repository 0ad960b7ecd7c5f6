package upstream

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/egressd/egressd/internal/carry"
)

// drainMost is how long the last bytes may take to the proxy once their sender has left.
const drainMost = 5 * time.Second

// Socket returns a socket that stands for secure, for callers that need a descriptor, and a function that carries bytes
// between the two until both have ended. Somebody has to run that function; it closes secure.
func Socket(secure *tls.Conn) (conn net.Conn, run func(), err error) {
	fds, err := carry.Pair()
	if err != nil {
		return nil, nil, err
	}
	ends := [2]net.Conn{}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "upstream")
		c, failed := net.FileConn(f) // a duplicate
		f.Close()
		if failed != nil {
			err = failed
			continue
		}
		ends[i] = c
	}
	var watched net.Conn
	if err == nil {
		watched, err = duplicate(ends[1])
	}
	if err != nil {
		for _, c := range ends {
			if c != nil {
				c.Close()
			}
		}
		return nil, nil, err
	}
	s := &socket{secure: secure, near: ends[1].(*net.UnixConn), watched: watched.(*net.UnixConn)}
	return ends[0], s.carry, nil
}

func duplicate(c net.Conn) (net.Conn, error) {
	f, err := c.(*net.UnixConn).File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return net.FileConn(f)
}

// A socket carries between a pair of sockets and TLS.
type socket struct {
	secure  *tls.Conn
	near    *net.UnixConn // whose other end the caller has
	watched *net.UnixConn // the same socket, by which its end is awaited
}

func (s *socket) carry() {
	over := make(chan struct{}, 2)
	go func() {
		defer func() { over <- struct{}{} }()
		if copyAll(s.secure, s.near) == nil {
			s.secure.CloseWrite()
			return
		}
		s.abandon()
	}()
	go func() {
		defer func() { over <- struct{}{} }()
		if copyAll(s.near, s.secure) == nil {
			s.near.CloseWrite()
			return
		}
		s.abandon()
	}()
	s.awaitEnd()
	now := time.Now()
	s.secure.SetReadDeadline(now) // nobody reads what it brings
	s.secure.NetConn().SetWriteDeadline(now.Add(drainMost))
	<-over
	<-over
	s.near.Close()
	s.watched.Close()
	s.secure.NetConn().SetWriteDeadline(time.Now().Add(drainMost))
	s.secure.Close()
}

// abandon ends the pair both ways, which the caller and awaitEnd see.
func (s *socket) abandon() {
	s.near.CloseRead()
	s.near.CloseWrite()
}

// awaitEnd returns when both ways of the pair have ended.
func (s *socket) awaitEnd() {
	raw, err := s.watched.SyscallConn()
	if err != nil {
		return
	}
	raw.Read(func(fd uintptr) bool { return carry.Ended(int(fd)) })
}

// copyAll copies until from ends, and returns nil then.
func copyAll(to, from net.Conn) error {
	b := make([]byte, 16<<10)
	for {
		n, err := from.Read(b)
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				return err
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return nil
		default:
			return err
		}
	}
}
