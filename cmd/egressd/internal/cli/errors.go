package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/egressd/egressd/internal/hint"
)

// Exit codes that more than one command uses. A command whose answer is its
// exit code says so in its help, and returns a [Status].
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
	ExitUnsure = 2 // where the others are answers
)

// A Status ends a command with a code that is an answer, not an error. Nothing
// is printed for it.
type Status int

func (s Status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// Report prints err for a person and returns the exit code that it stands for.
func Report(w io.Writer, err error) int {
	if err == nil {
		return ExitOK
	}
	var answer Status
	if errors.As(err, &answer) {
		return int(answer)
	}
	f := &hint.Error{Code: ExitFailed, Err: err}
	errors.As(err, &f)
	hint.Write(w, err, f.Hint)
	return f.Code
}
