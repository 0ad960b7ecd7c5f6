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

	"github.com/egressd/egressd/internal/confined"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/proxy"
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

// Privileges is the other part of Process: every thread is stopped for it, and does it. It is
// safe for concurrent use.
func Privileges(talk io.Writer) error {
	err := gainNothing()
	if errors.Is(err, errors.ErrUnsupported) {
		fmt.Fprintln(talk, "egressd: warning: this build uses cgo and can still gain privileges from a program with set-user-ID; build it with CGO_ENABLED=0")
		return nil
	}
	if few, ok := errors.AsType[*confined.FewSignals](err); ok {
		return hint.Failed(fmt.Errorf("confine egressd: no new privileges: %w", few), few.Hint)
	}
	if err != nil {
		return unconfined("no new privileges", err)
	}
	return nil
}

// Daemon drops capabilities and system calls that serve does not need; run and attach need them to make namespaces. If the
// kernel has no seccomp, or the service manager forbids a further filter, Daemon says so on talk.
func Daemon(talk io.Writer) error {
	err := confined.DropCapabilities()
	switch {
	case err == nil || errors.Is(err, errors.ErrUnsupported): // which was said
	case errors.Is(err, syscall.EPERM):
		fmt.Fprintln(talk, "egressd: warning: what has started egressd does not let it give up capabilities")
		fmt.Fprintln(talk, "egressd: hint: allow it capset(2): SystemCallFilter=capset seccomp in its unit, as egressd init systemd writes")
	default:
		return unconfined("drop capabilities", err)
	}
	err = confined.FilterCalls()
	switch {
	case err == nil:
	case errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EINVAL):
		fmt.Fprintln(talk, "egressd: warning: this kernel has no filters of system calls, so egressd can make any; a flaw in it would reach further")
	case errors.Is(err, syscall.EPERM):
		fmt.Fprintln(talk, "egressd: warning: what has started egressd does not let it filter its system calls")
		fmt.Fprintln(talk, "egressd: hint: allow it seccomp(2): SystemCallFilter=capset seccomp in its unit, as egressd init systemd writes")
	default:
		return unconfined("filter system calls", err)
	}
	return nil
}

func unconfined(step string, err error) error {
	return hint.Failed(fmt.Errorf("confine egressd: %s: %w", step, err), "egressd serve, where prctl(2) and setrlimit(2) are allowed")
}

// Memory makes the process's memory, environment and descriptors root's
// in /proc, and keeps others of its user from tracing it (prctl(2),
// PR_SET_DUMPABLE). It also stops core dumps into a pipe, which RLIMIT_CORE
// does not.
func Memory() error {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_DUMPABLE, 0, 0); errno != 0 {
		return unconfined("guard its memory", errno)
	}
	return nil
}

// gainNothing keeps every thread, and all that they start, from gaining
// privileges by execve(2).
func gainNothing() error {
	const noNewPrivs = 38 // PR_SET_NO_NEW_PRIVS; it belongs to a thread, not to the process
	return confined.Each(syscall.SYS_PRCTL, noNewPrivs, 1)
}

// WarnRoot speaks up where a flaw in egressd would be root's.
func WarnRoot(talk io.Writer) {
	if os.Geteuid() == 0 {
		fmt.Fprintln(talk, "egressd: warning: running as root, which egressd has no need of")
		fmt.Fprintln(talk, "egressd: hint: give it a user of its own, as with DynamicUser=yes in a systemd unit (see \"As a service\" in docs/manual.md)")
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

// connectionsFew is how many are worth a word, where there could be more.
const connectionsFew = 4096

// WarnFiles speaks up where fewer connections than the configuration says can be had.
func WarnFiles(talk io.Writer, most int) {
	files := OpenFiles()
	if fit := proxy.ConnectionsWithin(most, files); fit < min(most, connectionsFew) {
		fmt.Fprintf(talk, "egressd: warning: %d files may be open at a time, which is enough for %d connections; limits.connections says %d\n", files, fit, most)
		fmt.Fprintln(talk, "egressd: hint: raise it: LimitNOFILE=65536 in the systemd unit, docker run --ulimit nofile=65536, or ulimit -Hn 65536 in the shell that starts egressd")
	}
}
