//go:build linux

package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fullListener listens on a port of 127.0.0.1 where the next connection waits until one
// is accepted, as one fills its queue.
func fullListener(t *testing.T) (fd, port int) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port = at.(*syscall.SockaddrInet4).Port
	first, err := dial(port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(first.close)
	return fd, port
}

// waitsIn waits until a thread of this process is held in a system call.
func waitsIn(t *testing.T, tid int, call uintptr) {
	t.Helper()
	path, want := fmt.Sprintf("/proc/self/task/%d/syscall", tid), fmt.Sprintf("%d ", call)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(path)
		if err == nil && strings.HasPrefix(string(text), want) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("thread %d is not in system call %d: %q, %v", tid, call, text, err)
		}
	}
}

func TestADialOutlastsSignals(t *testing.T) {
	listener, port := fullListener(t)
	thread, done := make(chan int), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- syscall.Gettid()
		c, err := dial(port)
		if err == nil {
			c.close()
		}
		done <- err
	}()
	tid := <-thread
	for range 3 {
		waitsIn(t, tid, syscall.SYS_CONNECT)
		if err := syscall.Tgkill(os.Getpid(), tid, syscall.SIGURG); err != nil { // as the runtime does when a goroutine was long at it
			t.Fatal(err)
		}
	}
	if fd, _, err := syscall.Accept(listener); err != nil {
		t.Fatal(err)
	} else {
		defer syscall.Close(fd)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
