// Package hint has the error that tells a person what to type next.
//
// A library returns it if it knows what helps. The command prints it as two lines, "egressd: error: …" and
// "egressd: hint: …".
package hint

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
)

// An Error is an error with a hint.
type Error struct {
	Code int    // exit code of a command that ends with this error
	Err  error  // says what happened, and to what
	Hint string // says what to type next; empty for the help of egressd
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Exit codes of [Failed] and [Misused].
const (
	CodeFailed = 1
	CodeUsage  = 2
)

// Failed is for a request that was understood and could not be carried out.
func Failed(err error, next string) error {
	return &Error{Code: CodeFailed, Err: err, Hint: next}
}

// Misused is for a request that is wrong as it was written.
func Misused(err error, next string) error {
	return &Error{Code: CodeUsage, Err: err, Hint: next}
}

// Next returns the hint of err, or "".
func Next(err error) string {
	if known, ok := errors.AsType[*Error](err); ok {
		return known.Hint
	}
	return ""
}

// Unsure gives err the exit code 2, for commands in which 0 and 1 are answers.
func Unsure(err error) error {
	if known, ok := errors.AsType[*Error](err); ok {
		return &Error{Code: CodeUsage, Err: known.Err, Hint: known.Hint}
	}
	return &Error{Code: CodeUsage, Err: err}
}

// Write writes err and what to type next, each on lines of its own, in one call of w.Write. A sandbox may have chosen words of err, so
// Write makes the lines printable.
func Write(w io.Writer, err error, next string) {
	if next == "" {
		next = "egressd help"
	}
	var b strings.Builder
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(&b, "egressd: error: %s\n", printable.Text(strings.TrimRight(line, "\n")))
	}
	Sayf(&b, "%s", next)
	_, _ = io.WriteString(w, b.String())
}

// Sayf writes a line of its own that says what to type next. Like all that a person is told to type, it begins with
// [shell.Program]. A sandbox may have chosen words of it, so Sayf makes the line printable.
func Sayf(w io.Writer, format string, args ...any) {
	fmt.Fprintf(w, "egressd: hint: %s\n", printable.Text(shell.Typed(fmt.Sprintf(format, args...))))
}
