package proxy

import (
	"net"
	"syscall"
	"testing"
)

// TestConnectionsInheritWhatTheirListenerHas: keepalives, no wait before a short segment, and a bound of the kernel's queue.
func TestConnectionsInheritWhatTheirListenerHas(t *testing.T) {
	how := net.ListenConfig{KeepAlive: -1}
	how.SetMultipathTCP(false)
	l, err := how.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	(&listener{Listener: l}).setOptions()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	raw, err := accepted.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	const notSentLowat = 25 // TCP_NOTSENT_LOWAT
	for _, row := range []struct{ level, option, want int }{
		{syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1},
		{syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, keepAliveIdle},
		{syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1},
		{syscall.IPPROTO_TCP, notSentLowat, unsentMost},
	} {
		err := raw.Control(func(fd uintptr) {
			if n, err := syscall.GetsockoptInt(int(fd), row.level, row.option); err != nil || n != row.want {
				t.Errorf("option %d of level %d is %d, want %d; error %v", row.option, row.level, n, row.want, err)
			}
		})
		if err != nil {
			t.Error(err)
		}
	}
}
