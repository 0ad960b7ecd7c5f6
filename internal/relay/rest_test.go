//go:build linux && !noepoll

package relay

import (
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
)

// A told handler passes on what it is told, as long as there is room.
type told chan Events

func (t told) Ready(e Events) {
	select {
	case t <- e:
	default:
	}
}

// TestALoopRestsUntilThereIsAConnection: it hears of listeners, of what is posted and of
// time in either way of waiting.
func TestALoopRestsUntilThereIsAConnection(t *testing.T) {
	loop, err := NewLoop()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- loop.Run() }()
	rests := func() bool {
		answer := make(chan bool)
		loop.Post(func() { answer <- loop.resting != nil })
		return <-answer
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	waits := make(told, 100)
	loop.Post(func() { loop.WatchListener(int(f.Fd()), waits) })
	if !rests() || !isNested(t) {
		t.Error("a loop that has only a listener does not rest")
	}
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	<-waits
	loop.Post(func() { loop.Forget(int(f.Fd())) })

	tick := make(chan struct{})
	after := func() { loop.After(1, func() { tick <- struct{}{} }) }
	loop.Post(after)
	<-tick
	fds, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fds[0])
	over := make(told, 100)
	loop.Post(func() { loop.WatchEnd(fds[0], over) })
	if rests() {
		t.Error("a loop that has a connection rests")
	}
	if isNested(t) {
		t.Error("its epoll is in another still: what is added to it takes a lock of the whole machine")
	}
	syscall.Close(fds[1])
	for e := range over {
		if e&syscall.EPOLLHUP != 0 {
			break
		}
	}
	loop.Post(after)
	<-tick
	loop.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// isNested reports whether an epoll of this process is in another one.
func isNested(t *testing.T) bool {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		text, _ := os.ReadFile("/proc/self/fdinfo/" + fd.Name())
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "tfd:" {
				if what, _ := os.Readlink("/proc/self/fd/" + f[1]); what == "anon_inode:[eventpoll]" {
					return true
				}
			}
		}
	}
	return false
}
