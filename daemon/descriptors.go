package daemon

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/egressd/egressd/sandbox/foreign"
)

// refuseDescriptors is replaced by tests.
var refuseDescriptors = foreign.RefuseDescriptors

// closePatience is how long closing waits for descriptors that clients of a Unix socket sent.
const closePatience = 2 * time.Second

// screen has connections of a Unix listener bring no descriptors, by the kernel or by a [foreign.Screen].
func (ls *listeners) screen(l *boundListener) error {
	socket, ok := l.Listener.(*net.UnixListener)
	if !ok {
		return nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var all bool
	var refused error
	err = raw.Control(func(fd uintptr) { all, refused = refuseDescriptors(fd) })
	if err := errors.Join(err, refused); err != nil {
		return fmt.Errorf("refuse descriptors: %w", err)
	}
	if !all {
		l.Listener = foreign.NewScreen(socket, ls.daemon.Server.Limits.Connections)
	}
	return nil
}
