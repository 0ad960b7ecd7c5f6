package jailinit

import (
	"bytes"
	"syscall"
	"testing"
)

func TestMessagesOfAnyLengthArriveWhole(t *testing.T) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fds[0])
	for _, n := range []int{0, 1, 32<<10 - 1, 32 << 10, 32<<10 + 1, 300_000} {
		sent := bytes.Repeat([]byte("x"), n)
		done := make(chan error, 1)
		go func() { done <- Send(fds[1], sent) }()
		got, _, err := Receive(fds[0])
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes: read %d, %v", n, len(got), err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	syscall.Close(fds[1])
	if got, _, err := Receive(fds[0]); err != nil || got != nil {
		t.Errorf("after the end: %q, %v", got, err)
	}
}

func TestLastWordsArriveFromWhoReadNothing(t *testing.T) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fds[0])
	for _, send := range []struct {
		from int
		text string
	}{{fds[0], "unread"}, {fds[1], "why"}} {
		if err := Send(send.from, []byte(send.text)); err != nil {
			t.Fatal(err)
		}
	}
	syscall.Close(fds[1])
	if got, _, err := Receive(fds[0]); err != nil || string(got) != "why" {
		t.Errorf("%q, %v", got, err)
	}
	if got, _, err := Receive(fds[0]); err != nil || got != nil {
		t.Errorf("after the end: %q, %v", got, err)
	}
}
