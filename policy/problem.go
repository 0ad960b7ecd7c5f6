package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A Problem is one thing that is wrong in a file. Message ends with what to
// type next.
type Problem struct {
	File    string
	Line    int // from 1; 0 if the problem stands in no file
	Column  int // from 1, in characters
	Message string
}

func (p Problem) String() string {
	if p.Line == 0 {
		return p.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, p.Message)
}

// A FileError lists the problems of a file in the order of its lines, up to the point
// where reading stopped. It is never empty.
type FileError []Problem

// maxProblems bounds the problems in a message. More usually have one common cause.
const maxProblems = 20

// Error returns one line for each problem, and says how many it left out.
func (e FileError) Error() string {
	lines := make([]string, 0, maxProblems+1)
	for _, p := range e[:min(len(e), maxProblems)] {
		lines = append(lines, p.String())
	}
	if more := len(e) - maxProblems; more > 0 {
		lines = append(lines, fmt.Sprintf("%s: and %d more; correct these first", e[0].File, more))
	}
	return strings.Join(lines, "\n")
}

func (e FileError) Sorted() FileError {
	slices.SortStableFunc(e, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return e
}
