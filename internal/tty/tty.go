//go:build linux

// Package tty asks a person at a terminal for one key.
package tty

import (
	"os"
	"syscall"
	"time"
	"unsafe"
)

// Is reports whether f is a terminal.
func Is(f *os.File) bool {
	var how syscall.Termios
	return control(f, syscall.TCGETS, unsafe.Pointer(&how))
}

// TakesKeys reports whether a program reads single keys from a terminal, without echo: a full-screen program, a line editor.
func TakesKeys(f *os.File) bool {
	var how syscall.Termios
	return control(f, syscall.TCGETS, unsafe.Pointer(&how)) && how.Lflag&(syscall.ICANON|syscall.ECHO) == 0
}

// Foreground returns the process group that may read from a terminal. It returns 0 if f is not the terminal of this session.
func Foreground(f *os.File) int {
	var group int32
	if !control(f, syscall.TIOCGPGRP, unsafe.Pointer(&group)) {
		return 0
	}
	return int(group)
}

// SetForeground lets a process group of this session read from a terminal. The caller ignores SIGTTOU.
func SetForeground(f *os.File, group int) {
	number := int32(group)
	control(f, syscall.TIOCSPGRP, unsafe.Pointer(&number))
}

// control makes an ioctl(2) on a terminal.
func control(f *os.File, request uintptr, with unsafe.Pointer) bool {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), request, uintptr(with))
	return errno == 0
}

const tcsetsf = syscall.TCSETS + 2 // TCSETSF of ioctl_tty(2), which also drops what was typed

// ReadKey calls ask and returns the next key. It drops keys that were typed before, for another program, and all keys until
// nobody has typed for quiet. Keys that else send a signal are returned, too. ReadKey returns 0 once over reports
// true; it asks over several times a second.
func ReadKey(f *os.File, quiet time.Duration, ask func(), over func() bool) byte {
	var before syscall.Termios
	if !control(f, syscall.TCGETS, unsafe.Pointer(&before)) {
		return 0
	}
	raw := before
	raw.Lflag &^= syscall.ICANON | syscall.ECHO | syscall.ISIG
	raw.Oflag |= syscall.OPOST | syscall.ONLCR
	raw.Cc[syscall.VMIN], raw.Cc[syscall.VTIME] = 0, 2 // a read waits 0.2 s
	if !control(f, tcsetsf, unsafe.Pointer(&raw)) {
		return 0
	}
	defer control(f, syscall.TCSETS, unsafe.Pointer(&before))
	ask()
	for typed := time.Now(); !over(); {
		var key [1]byte
		n, err := syscall.Read(int(f.Fd()), key[:])
		switch {
		case n == 1 && time.Since(typed) >= quiet:
			return key[0]
		case n == 1:
			typed = time.Now()
		case err != nil && err != syscall.EINTR:
			return 0
		}
	}
	return 0
}

// Typed reports whether keys wait that nobody has read, also such of an unfinished line. They stay.
func Typed(f *os.File) bool {
	var before syscall.Termios
	if !control(f, syscall.TCGETS, unsafe.Pointer(&before)) {
		return false
	}
	raw := before
	raw.Lflag &^= syscall.ICANON // with it the kernel counts whole lines alone
	if !control(f, syscall.TCSETS, unsafe.Pointer(&raw)) {
		return false
	}
	defer control(f, syscall.TCSETS, unsafe.Pointer(&before))
	var waiting int32
	return control(f, syscall.TIOCINQ, unsafe.Pointer(&waiting)) && waiting > 0
}

// IsJob reports whether a shell with job control has started this process: its group is not that of its session's first process.
func IsJob() bool {
	session, _, errno := syscall.RawSyscall(syscall.SYS_GETSID, 0, 0, 0)
	if errno != 0 {
		return false
	}
	group, err := syscall.Getpgid(int(session))
	return err == nil && group != syscall.Getpgrp()
}
