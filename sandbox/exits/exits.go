// Package exits has the exit codes of commands that start a program in a sandbox (run, enter, docker run
// and selftest), and their errors with hints.
package exits

import (
	"errors"

	"github.com/egressd/egressd/internal/hint"
)

// Exit codes that do not come from the program in the sandbox.
const (
	Denied        = 86  // the program succeeded, egressd denied something, and the user asked to fail then
	Sandbox       = 125 // no sandbox could be made, or the command line is wrong
	NotExecutable = 126
	NotFound      = 127
	Signal        = 128 // plus the number of the signal that ended the program
)

// AsSandbox gives err the exit code [Sandbox], so that scripts can tell it from an exit code of the
// program. It keeps the codes of [NotStarted].
func AsSandbox(err error) error {
	var f *hint.Error
	if err == nil {
		return nil
	}
	if !errors.As(err, &f) {
		return &hint.Error{Code: Sandbox, Err: err}
	}
	if f.Code == hint.CodeFailed || f.Code == hint.CodeUsage {
		return &hint.Error{Code: Sandbox, Err: err, Hint: f.Hint}
	}
	return err
}
