// Package confine takes from a process of egressd what it does not need, and says what it
// is left with.
package confine

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"syscall"

	"github.com/egressd/egressd/internal/hint"
)

// Process gives up privileges for good that another program of the same user could use against this process, which holds the
// sandboxes' tokens. Call it before any token is read. Child processes inherit the restrictions, except for the
// protection of memory, which execve(2) resets.
//
// A restriction that fails is an error. In a build with cgo, where the Go runtime cannot reach every thread, Process
// only says so on talk.
func Process(talk io.Writer) error {
	return errors.Join(Guard(), Privileges(talk))
}

// Guard is the part of Process that costs next to nothing.
func Guard() error {
	syscall.Umask(0o077) // what is not given to others in so many words is its own
	if err := syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}); err != nil {
		return unconfined("no core dumps", err) // a dump would hold the tokens
	}
	return Memory()
}

func unconfined(step string, err error) error {
	return hint.Failed(fmt.Errorf("confine egressd: %s: %w", step, err), "egressd serve, where prctl(2) and setrlimit(2) are allowed")
}

// WarnRoot speaks up where a flaw in egressd would be root's.
func WarnRoot(talk io.Writer) {
	if os.Geteuid() == 0 {
		fmt.Fprintln(talk, "egressd: warning: running as root, which egressd has no need of")
		hint.Sayf(talk, "give it a user of its own, as with DynamicUser=yes in a systemd unit (egressd help daemon)")
	}
}

// OpenFiles is how many files the process may have open at a time. The Go runtime has raised
// that as far as it may.
func OpenFiles() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxUint64
	}
	return limit.Cur
}

// WarnFiles warns if the open files are enough for fewer connections than the configuration says.
func WarnFiles(talk io.Writer, fit, most int) {
	if fit < most {
		fmt.Fprintf(talk, "egressd: warning: %d files may be open at a time, which is enough for %d connections, %d of one sandbox; limits.connections says %d\n", OpenFiles(), fit, fit/2, most)
		hint.Sayf(talk, "raise it: LimitNOFILE=65536 in the systemd unit, docker run --ulimit nofile=65536, or ulimit -Hn 65536 in the shell that starts egressd")
	}
}
