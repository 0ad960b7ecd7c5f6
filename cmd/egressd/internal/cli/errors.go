package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// Exit codes that more than one command uses. A command whose answer is its
// exit code says so in its help, and returns a [Status].
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
	ExitUnsure = 2 // where the others are answers
)

// A Failure is an error with the exit code that it ends the command with, and
// the line that tells a person what to type next.
type Failure struct {
	Code int
	Err  error
	Hint string
}

func (f *Failure) Error() string { return f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// A Status ends a command with a code that is an answer, not an error. Nothing
// is printed for it.
type Status int

func (s Status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// Failed is for a command that was understood and could not be done.
func Failed(err error, hint string) error {
	return &Failure{Code: ExitFailed, Err: err, Hint: hint}
}

// Misused is for a command that was not understood: exit code 2.
func Misused(err error, hint string) error {
	return &Failure{Code: ExitUsage, Err: err, Hint: hint}
}

// Report prints err for a person and returns the exit code that it stands for.
func Report(w io.Writer, err error) int {
	if err == nil {
		return ExitOK
	}
	var answer Status
	if errors.As(err, &answer) {
		return int(answer)
	}
	f := &Failure{Code: ExitFailed, Err: err}
	errors.As(err, &f)
	Explain(w, err, f.Hint)
	return f.Code
}

// Explain writes an error and what to type next, each on lines of its own.
// The error may quote what a sandbox wrote, so it is made printable.
func Explain(w io.Writer, err error, hint string) {
	if hint == "" {
		hint = "egressd help"
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(w, "egressd: error: %s\n", Printable(strings.TrimRight(line, "\n")))
	}
	fmt.Fprintf(w, "egressd: hint: %s\n", Printable(hint))
}

// Unsure keeps every failure from reading like a verdict.
func Unsure(err error) error {
	var f *Failure
	if errors.As(err, &f) {
		return &Failure{Code: ExitUnsure, Err: f.Err, Hint: f.Hint}
	}
	return &Failure{Code: ExitUnsure, Err: err}
}
