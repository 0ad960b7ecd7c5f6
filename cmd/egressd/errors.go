package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// Exit codes that more than one command uses. A command whose answer is its
// exit code says so in its help, and returns a [status].
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitUnsure = 2 // where the others are answers
)

// A failure is an error with the exit code that it ends the command with, and
// the line that tells a person what to type next.
type failure struct {
	code int
	err  error
	hint string
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// A status ends a command with a code that is an answer, not an error. Nothing
// is printed for it.
type status int

func (s status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// failed is for a command that was understood and could not be done.
func failed(err error, hint string) error {
	return &failure{code: exitFailed, err: err, hint: hint}
}

// misused is for a command that was not understood: exit code 2.
func misused(err error, hint string) error {
	return &failure{code: exitUsage, err: err, hint: hint}
}

// report prints err for a person and returns the exit code that it stands for.
func report(w io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	var answer status
	if errors.As(err, &answer) {
		return int(answer)
	}
	f := &failure{code: exitFailed, err: err}
	errors.As(err, &f)
	explain(w, err, f.hint)
	return f.code
}

// explain writes an error and what to type next, each on lines of its own.
// The error may quote what a sandbox wrote, so it is made printable.
func explain(w io.Writer, err error, hint string) {
	if hint == "" {
		hint = "egressd help"
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(w, "egressd: error: %s\n", printable(strings.TrimRight(line, "\n")))
	}
	fmt.Fprintf(w, "egressd: hint: %s\n", printable(hint))
}

// unsure keeps every failure from reading like a verdict.
func unsure(err error) error {
	var f *failure
	if errors.As(err, &f) {
		return &failure{code: exitUnsure, err: f.err, hint: f.hint}
	}
	return &failure{code: exitUnsure, err: err}
}
