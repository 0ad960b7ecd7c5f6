// Package integrate works out what other programs' settings have to say so that
// those programs go through egressd, and reads what another sandbox's settings say
// as patterns of a policy file. It reads files and writes none, knows no
// policy and no network, and changes nothing in a file but what it names: where
// that cannot be told, it refuses and says what to write by hand.
//
//	plan, err := integrate.Claude(path, 3128)
//	// show plan.File.Old and plan.File.New, then write
package integrate

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/egressd/egressd/internal/durable"
)

// maxFile is more than any settings file has, in bytes.
const maxFile = 1 << 20

// A File is one file as it is, and as it is to be. Old is nil where there is none.
type File struct {
	Path     string
	Old, New []byte
}

// Same says that there is nothing to write.
func (f *File) Same() bool { return f.Old != nil && string(f.Old) == string(f.New) }

// A Plan is what an integration would write, and what whoever writes it has to
// know: one sentence each.
type Plan struct {
	File   File
	Beside []Made // files of egressd's own that File names
	Notes  []string
}

// A Variable is one variable for the programs that another program starts.
type Variable struct{ Name, Value string }

// A ConflictError says that a setting is there and says something else. It is
// never replaced.
type ConflictError struct {
	Path, Setting, Has, Want string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s: %s is %s, and would have to be %s", e.Path, e.Setting, e.Has, e.Want)
}

// A ShapeError says that a file cannot be changed without a change of something else.
// ByHand is what to write into it instead.
type ShapeError struct {
	Path, Problem, ByHand string
}

func (e *ShapeError) Error() string { return e.Path + ": " + e.Problem }

// read returns nil where there is no file.
func read(path string) ([]byte, error) {
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
