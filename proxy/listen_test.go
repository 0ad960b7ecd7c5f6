package proxy

import (
	"net"
	"syscall"
	"testing"
)

func TestTheKernelQueuesLittleForAClient(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
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
	boundUnsent(accepted.(*net.TCPConn))
	raw, err := accepted.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		const notSentLowat = 25 // TCP_NOTSENT_LOWAT
		if n, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, notSentLowat); err != nil || n != unsentMost {
			t.Errorf("the kernel queues %d bytes for a client that does not read, want %d; error %v", n, unsentMost, err)
		}
	})
}
