//go:build !linux

package foreign

import (
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/egressd/egressd/sandbox"
)

// Plain returns an error: sockets of other programs are taken on Linux only.
func Plain(syscall.Conn) error { return errors.ErrUnsupported }

// KernelRefuses returns true: there is no [Screen] that takes descriptors.
func KernelRefuses() bool { return true }

// RefuseDescriptors does nothing: the system has no such option.
func RefuseDescriptors(uintptr) (all bool, err error) { return true, nil }

// A Screen is never made here.
type Screen struct{ net.Listener }

// NewScreen returns l as it is.
func NewScreen(l *net.UnixListener, _ int) *Screen { return &Screen{l} }

// Cut does nothing.
func (*Screen) Cut(time.Duration) {}

// A Conn is never made here.
type Conn struct {
	*net.UnixConn
	Client  sandbox.UnixPeer
	Unknown error
}
