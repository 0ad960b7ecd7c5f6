//go:build linux

package start

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/egressd/egressd/internal/printable"
)

// offerFor is how long a person has for each offer. Afterwards nothing more is offered.
const offerFor = 30 * time.Second

// offer asks on the terminal, one key each, whether to run the commands that allow what a run denied. Without a terminal
// in the foreground it does nothing.
func offer(stdin *os.File, stderr io.Writer, fixes []string) {
	if len(fixes) == 0 || !isTerminal(stdin) || !isTerminal(stderr) || !inForeground(stdin) {
		return
	}
	for _, fix := range fixes {
		words, ok := wordsOf(fix)
		if !ok {
			continue
		}
		key := readKey(stdin, offerFor, func() {
			fmt.Fprintf(stderr, "egressd: run %s? y: yes, n: no, q: quit ", printable.Text(fix))
		})
		fmt.Fprintf(stderr, "%s\n", map[byte]string{'y': "yes", 'n': "no"}[key])
		switch key {
		case 'y':
			cmd := exec.Command("/proc/self/exe", words[1:]...)
			cmd.Args[0], cmd.Stdout, cmd.Stderr = words[0], stderr, stderr
			_ = cmd.Run() // which has said what is wrong
		case 'n':
		default:
			return
		}
	}
}

// inForeground reports whether this process may read from the terminal.
func inForeground(terminal *os.File) bool {
	var group int32
	return control(terminal, syscall.TIOCGPGRP, unsafe.Pointer(&group)) && int(group) == syscall.Getpgrp()
}

// control makes an ioctl(2) on a terminal.
func control(terminal *os.File, request uintptr, with unsafe.Pointer) bool {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, terminal.Fd(), request, uintptr(with))
	return errno == 0
}

const tcsetsf = syscall.TCSETS + 2 // TCSETSF of ioctl_tty(2), which also drops what was typed

// readKey calls ask and returns the next key as a lower-case letter. It drops all that was typed before ask, which was
// for the program. It returns 0 at the end of the time.
func readKey(terminal *os.File, within time.Duration, ask func()) byte {
	var before syscall.Termios
	if !control(terminal, syscall.TCGETS, unsafe.Pointer(&before)) {
		return 0
	}
	raw := before
	raw.Lflag &^= syscall.ICANON | syscall.ECHO | syscall.ISIG
	raw.Cc[syscall.VMIN], raw.Cc[syscall.VTIME] = 0, 2 // a read waits 0.2 s
	if !control(terminal, tcsetsf, unsafe.Pointer(&raw)) {
		return 0
	}
	defer control(terminal, syscall.TCSETS, unsafe.Pointer(&before))
	ask()
	for end := time.Now().Add(within); time.Now().Before(end); {
		var key [1]byte
		n, err := syscall.Read(int(terminal.Fd()), key[:])
		switch {
		case n == 1:
			return key[0] | 0x20
		case err != nil && err != syscall.EINTR:
			return 0
		}
	}
	return 0
}

// wordsOf splits a command as a shell does that knows only the quotes of package shell. It accepts only egressd allow.
func wordsOf(command string) (words []string, ok bool) {
	var word strings.Builder
	quoted, begun := false, false
	for i := 0; i < len(command); i++ {
		switch c := command[i]; {
		case c == '\'':
			quoted, begun = !quoted, true
		case quoted:
			word.WriteByte(c)
		case c == '\\' && i+1 < len(command):
			i++
			word.WriteByte(command[i])
			begun = true
		case c == ' ':
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		case strings.IndexByte("\"$`;&|<>(){}#~!*?[]\n", c) >= 0:
			return nil, false
		default:
			word.WriteByte(c)
			begun = true
		}
	}
	if begun {
		words = append(words, word.String())
	}
	return words, !quoted && len(words) > 2 && words[0] == "egressd" && words[1] == "allow"
}
