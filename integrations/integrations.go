// Package integrations has what the integrations share. Each integration has a folder below: its Go code, its
// templates and its test.
//
// An integration returns the files of another program as text, and writes no file. It changes only the settings
// that it names. If it cannot tell how to change a file, it returns an error that says what to write by hand.
//
//	plan, err := claude.Merge(path, 3128)
//	// show plan.File.Old and plan.File.New, then write
package integrations

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/egressd/egressd/internal/durable"
)

// maxFile bounds the settings file of another program, in bytes.
const maxFile = 1 << 20

// A File is a settings file before and after the change. Old is nil if there is no file.
type File struct {
	Path     string
	Old, New []byte
}

// Same reports whether there is nothing to write.
func (f *File) Same() bool { return f.Old != nil && string(f.Old) == string(f.New) }

// A Plan is a change of a settings file. Notes are sentences for the person who makes the change.
type Plan struct {
	File   File
	Beside []Made // new files that File refers to
	Notes  []string
}

// A Variable is an environment variable for the programs that another program starts.
type Variable struct{ Name, Value string }

// A ConflictError says that a setting has another value already. No integration replaces it.
type ConflictError struct {
	Path, Setting, Has, Want string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s: %s is %s, and would have to be %s", e.Path, e.Setting, e.Has, e.Want)
}

// A ShapeError says that a file cannot be changed without changing something else in it. ByHand is the text
// to write into it by hand.
type ShapeError struct {
	Path, Problem, ByHand string
}

func (e *ShapeError) Error() string { return e.Path + ": " + e.Problem }

// ReadText reads a settings file. It returns nil if there is no file.
func ReadText(path string) ([]byte, error) {
	text, err := durable.Plain(path, maxFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case text == nil:
		text = []byte{}
	}
	if strings.Contains(string(text), "\x00") {
		return nil, &ShapeError{Path: path, Problem: "it is not text"}
	}
	return text, nil
}

// Table returns the object at a key, and makes it if there is none.
func Table(in map[string]any, key string) map[string]any {
	inner, ok := in[key].(map[string]any)
	if !ok {
		inner = map[string]any{}
		in[key] = inner
	}
	return inner
}

// A Made is a new file.
type Made struct {
	Path string
	Text string
	Mode fs.FileMode
}

// A Set is new files that belong together. Notes are lines for the person who writes them.
type Set struct {
	Files    []Made
	Notes    []string
	Readable string // a folder of these files that the user of a container has to read, or empty
}
