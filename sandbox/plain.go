//go:build !linux

package sandbox

import (
	"errors"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// Programs finds no programs: only Linux tells them.
type Programs struct{}

func (*Programs) Connected(_, _ netip.AddrPort) *policy.Process { return nil }

func (*Programs) Sent(netip.AddrPort) *policy.Process { return nil }

// TellsNetworksApart returns an error: networks can be attached on Linux alone.
func TellsNetworksApart() error { return errors.New("networks can be attached on Linux alone") }

// A UnixPeer is the user that connected to a Unix socket.
type UnixPeer struct {
	UID    uint32
	HasUID bool
	PID    int  // always 0
	Host   bool // always true: the system has one network
}

// UnixPeerOf returns the user at the other end of c (LOCAL_PEERCRED).
func UnixPeerOf(c *net.UnixConn) (UnixPeer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return UnixPeer{}, err
	}
	p := UnixPeer{Host: true}
	failed := raw.Control(func(fd uintptr) {
		var who *unix.Xucred
		if who, err = unix.GetsockoptXucred(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERCRED); err == nil {
			p.UID, p.HasUID = who.Uid, true
		}
	})
	return p, errors.Join(failed, err)
}
