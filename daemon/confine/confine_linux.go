package confine

import (
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/egressd/egressd/internal/confined"
	"github.com/egressd/egressd/internal/hint"
)

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
		hint.Sayf(talk, "allow it capset(2): SystemCallFilter=capset seccomp in its unit, as egressd init systemd writes")
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
		hint.Sayf(talk, "allow it seccomp(2): SystemCallFilter=capset seccomp in its unit, as egressd init systemd writes")
	default:
		return unconfined("filter system calls", err)
	}
	return nil
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
