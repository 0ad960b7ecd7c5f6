package sandbox

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// inherited are options that a connection has of the listener that it was accepted at, and
// what they are where nobody has changed them.
var inherited = [...]struct{ option, plain int }{
	{unix.SO_PEEK_OFF, -1},    // else what is looked at is not what is read after (for TCP since Linux 6.9)
	{unix.SO_TIMESTAMPING, 0}, // else what was sent comes back, as errors
	{unix.SO_RCVLOWAT, 1},     // else nobody is told of bytes until there are many
	{unix.SO_OOBINLINE, 0},
}

// Plain has a connection that was accepted at somebody else's listener be as if that were
// this process's own: what its owner has set there holds for the connection, too. Above all
// close(2) would wait as long as the owner likes, for who does not wait at the descriptor, too
// (SO_LINGER, socket(7)).
func Plain(c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = makePlain(int(fd)) })
	return errors.Join(err, failed)
}

func makePlain(fd int) error {
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}); err != nil {
		return fmt.Errorf("make a connection plain: %w", err)
	}
	for _, o := range inherited {
		err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o.option, o.plain)
		if err != nil && !errors.Is(err, unix.ENOPROTOOPT) && !errors.Is(err, unix.EOPNOTSUPP) { // then there is none to have
			return fmt.Errorf("make a connection plain: option %d: %w", o.option, err)
		}
	}
	return nil
}
