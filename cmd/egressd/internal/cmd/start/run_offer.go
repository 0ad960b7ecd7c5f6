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

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/tty"
)

// offerFor is how long a person has for each offer. Afterwards nothing more is offered.
const offerFor = 30 * time.Second

// offer asks on the terminal, one key each, whether to run the commands that allow what a run denied. It does nothing
// without a terminal in the foreground on which somebody has typed. Keys that were typed ahead belong to the
// shell: offer leaves them and does nothing. The run began at began.
func offer(stdin *os.File, stderr io.Writer, fixes []string, began time.Time) {
	if len(fixes) == 0 || !cli.IsTerminal(stdin) || !cli.IsTerminal(stderr) || tty.Foreground(stdin) != syscall.Getpgrp() {
		return
	}
	if unattended(os.Getenv) || !typedAt(stdin, began) || tty.Typed(stdin) {
		return
	}
	for _, fix := range fixes {
		words, ok := wordsOf(fix)
		if !ok {
			continue
		}
		end := time.Now().Add(offerFor)
		key := tty.ReadKey(stdin, 0, func() {
			fmt.Fprintf(stderr, "egressd: run %s? y: yes, n: no, q: quit ", printable.Text(fix))
		}, func() bool { return time.Now().After(end) }) | 0x20 // in lower case
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

// unattended reports whether the environment says that nobody reads along.
func unattended(getenv func(string) string) bool {
	ci := getenv("CI")
	return ci != "" && ci != "false" && ci != "0" || getenv("TERM") == "dumb"
}

// typedAt reports whether somebody has typed on a terminal: this process is a job of an interactive shell, or keys were read
// while it ran. A terminal that a program made for this process alone, such as script or a CI runner, has seen no key.
func typedAt(terminal *os.File, began time.Time) bool {
	if tty.IsJob() {
		return true
	}
	var state syscall.Stat_t
	return syscall.Fstat(int(terminal.Fd()), &state) == nil && time.Unix(state.Atim.Unix()).After(began)
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
