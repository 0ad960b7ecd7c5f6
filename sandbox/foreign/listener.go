package foreign

import (
	"net"
	"syscall"
)

// A Listener is one that another program made and may still hold. Its connections have default options.
type Listener struct{ net.Listener }

// Accept implements [net.Listener].
func (l Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if socket, ok := c.(syscall.Conn); ok && Plain(socket) == nil {
			return c, nil
		}
		c.Close()
	}
}
