package logs

import (
	"path/filepath"
	"strings"

	"github.com/egressd/egressd/egress"
)

// interpreters execute what somebody else has written, so that their own name says
// little. With a version behind it, it is the same program.
var interpreters = []string{"node", "python", "ruby", "perl", "php", "bun", "deno"}

// Process is what a record's program is called: the file that is
// executed, or, where that is an interpreter that has another name for itself, such
// as npm, or the name that it was called by, such as python3, that name.
func Process(r *egress.Record) string {
	exe := Exe(r)
	if !isInterpreter(exe) || len(r.Process.Argv) == 0 {
		return exe
	}
	title, _, _ := strings.Cut(strings.TrimSuffix(r.Process.Argv[0], "..."), " ")
	if name := filepath.Base(title); plainProgram(name) {
		return name
	}
	return exe
}

// Exe is the name of the file that a record's program executes.
func Exe(r *egress.Record) string {
	if r.Process == nil || r.Process.Exe == "" {
		return ""
	}
	return filepath.Base(strings.TrimSuffix(r.Process.Exe, " (deleted)"))
}

func isInterpreter(exe string) bool {
	for _, name := range interpreters {
		if rest, ok := strings.CutPrefix(exe, name); ok && strings.Trim(rest, "0123456789.") == "" {
			return true
		}
	}
	return false
}

func plainProgram(name string) bool {
	if len(name) == 0 || len(name) > 32 {
		return false
	}
	return !strings.ContainsFunc(name, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-+", c)) || c == '/'
	}) && strings.Trim(name, "._-+") != ""
}
