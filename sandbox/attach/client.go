//go:build linux

package attach

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/egressd/egressd/sandbox"
	"golang.org/x/sys/unix"
)

// A NoDaemonError says that no daemon answers at a socket.
type NoDaemonError struct {
	Path string
	Err  error
}

func (e *NoDaemonError) Error() string {
	return fmt.Sprintf("no egressd answers at %s: %v", e.Path, e.Err)
}
func (e *NoDaemonError) Unwrap() error { return e.Err }

// A RefusedError is the answer of a daemon that does not attach the network.
type RefusedError struct{ Problem, Hint string }

func (e *RefusedError) Error() string { return "egressd did not take the network: " + e.Problem }

// An Attached network is served by a daemon.
type Attached struct {
	Answer Answer
	conn   int
}

// Dial connects to a daemon's socket. The error is a [*NoDaemonError] if no daemon answers.
func Dial(path string) (*Client, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, &NoDaemonError{path, err}
	}
	who, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		unix.Close(fd)
		return nil, &NoDaemonError{path, err}
	}
	return &Client{UID: who.Uid, path: path, conn: fd}, nil
}

// A Client is connected to a daemon, which soon expects a request.
type Client struct {
	UID uint32 // of the daemon

	path string
	conn int
}

// Close disconnects.
func (k *Client) Close() {
	if k.conn >= 0 {
		unix.Close(k.conn)
	}
	k.conn = -1
}

const answerPatience = 10 // seconds

// attach sends a request with descriptors, which the caller still closes. On success the result owns the
// connection.
func (k *Client) attach(o Request, fds []int) (*Attached, error) {
	defer k.Close()
	o.Version = version
	text, err := json.Marshal(&o)
	if err != nil {
		return nil, err
	}
	sending := unix.Sendmsg(k.conn, text, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
	if sending != nil && !errors.Is(sending, unix.EPIPE) && !errors.Is(sending, unix.ECONNRESET) {
		return nil, &NoDaemonError{k.path, sending}
	}
	text, err = receiveAnswer(k.conn) // a refusal may have come before the request
	if err != nil {
		return nil, &NoDaemonError{k.path, cmp.Or(sending, err)}
	}
	a, err := parseAnswer(text)
	switch {
	case err != nil:
		return nil, err
	case a.Problem != "":
		return nil, &RefusedError{a.Problem, a.Hint}
	}
	h := &Attached{*a, k.conn}
	k.conn = -1
	return h, nil
}

// Refused tells the daemon that a container was refused, and returns the ID of the record. It disconnects.
func (k *Client) Refused(c *sandbox.RefusedContainer) (id string, err error) {
	a, err := k.attach(Request{Kind: KindRefused, Container: c}, nil)
	if err != nil {
		return "", err
	}
	a.Close()
	return a.Answer.ID, nil
}

func receiveAnswer(conn int) ([]byte, error) {
	if err := unix.SetsockoptTimeval(conn, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerPatience}); err != nil {
		return nil, err
	}
	b := make([]byte, answerBytes)
	for {
		n, _, err := unix.Recvfrom(conn, b, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, err
		case n == 0:
			return nil, errors.New("the connection was closed")
		default:
			return b[:n], nil
		}
	}
}

// Close disconnects. For [KindRun] this ends the attachment.
func (h *Attached) Close() {
	if h.conn >= 0 {
		unix.Close(h.conn)
	}
	h.conn = -1
}

// Lost returns true when the daemon is gone, and false once stop is readable.
func (h *Attached) Lost(stop *os.File) bool {
	for {
		p := []unix.PollFd{{Fd: int32(h.conn), Events: unix.POLLRDHUP}, {Fd: int32(stop.Fd()), Events: unix.POLLIN}}
		_, err := unix.Poll(p, -1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || p[1].Revents != 0:
			return false
		case p[0].Revents != 0:
			return true
		}
	}
}

// End says that nobody is there any more, and reads what it came to.
func (h *Attached) End(into any) error {
	defer h.Close()
	if err := unix.Sendto(h.conn, []byte("end"), unix.MSG_NOSIGNAL, nil); err != nil {
		return err
	}
	text, err := receiveAnswer(h.conn)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}
