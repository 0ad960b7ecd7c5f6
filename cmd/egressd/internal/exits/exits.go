// Package exits has the exit codes, and the errors with what to type next, of commands that
// start a program in a sandbox: run, enter, docker run and selftest.
package exits

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/sandbox"
)

// Exit codes of run that are not its program's.
const (
	Denied        = 86  // the program succeeded, but something was denied, and that was to count
	Sandbox       = 125 // there is no sandbox, or the command line is wrong
	NotExecutable = 126
	NotFound      = 127
	Signal        = 128 // plus the number of the signal that ended the program
)

// AsSandbox gives errors of a command the exit code by which they are told from those of
// its program.
func AsSandbox(err error) error {
	var f *hint.Error
	var answer cli.Status
	if err == nil || errors.As(err, &answer) {
		return err
	}
	if !errors.As(err, &f) {
		return &hint.Error{Code: Sandbox, Err: err}
	}
	if f.Code == cli.ExitFailed || f.Code == cli.ExitUsage {
		return &hint.Error{Code: Sandbox, Err: err, Hint: f.Hint}
	}
	return err
}

// NoSandbox is the error for a machine on which no sandbox can be made, as err says. There is
// no weaker one to fall back to.
func NoSandbox(err error) error {
	next := "egressd serve, and proxy variables, for a sandbox that something else makes"
	var setup *sandbox.SetupError
	if path := Unreadable(); errors.Is(err, syscall.EACCES) && path != "" {
		return hint.Failed(fmt.Errorf("%w: %s cannot be read by this user, and the process of such a file belongs to root", err, path), "chmod a+r "+path)
	}
	if errors.As(err, &setup) && (errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL) || strings.Contains(err.Error(), "not permitted")) {
		next = "allow unprivileged user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), user.max_user_namespaces=15000, or in Docker --security-opt seccomp=unconfined"
	}
	return hint.Failed(err, next)
}

// Unreadable returns the path of this program where this process may execute, but not read
// it, and else an empty one.
func Unreadable() string {
	f, err := os.Open("/proc/self/exe")
	if err == nil {
		f.Close()
	}
	path, _ := os.Executable()
	if !errors.Is(err, syscall.EACCES) {
		return ""
	}
	return path
}

// NotStarted says whose fault it is that a program was not started, and what to type next.
func NotStarted(err error) error {
	var program *sandbox.ExecError
	switch {
	case errors.As(err, &program) && program.Missing:
		return &hint.Error{Code: NotFound, Err: err, Hint: "egressd run -- COMMAND, with the path of the program"}
	case errors.As(err, &program):
		return &hint.Error{Code: NotExecutable, Err: err, Hint: "chmod +x " + program.Name}
	}
	return NoSandbox(err)
}

// Escaped is an error where something got out of a sandbox.
func Escaped(tried []sandbox.Attempt) error {
	for _, a := range tried {
		if a.Escaped != "" {
			return hint.Failed(fmt.Errorf("the sandbox does not hold: %s: %s", a.Name, a.Escaped), "egressd selftest")
		}
	}
	return nil
}
