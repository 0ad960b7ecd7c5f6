// Package shell quotes text as words of a POSIX shell.
package shell

import (
	"os"
	"regexp"
	"strings"
	"sync"
)

// ProgramVariable names the environment variable that [Program] reads.
const ProgramVariable = "EGRESSD_COMMAND"

// Program returns what people type to run this program. It is egressd, except in a container that only a script on the
// host can reach: egressd init docker and egressd init compose give the path of that script by [ProgramVariable].
func Program() string {
	if path := os.Getenv(ProgramVariable); path != "" {
		return Word(path)
	}
	return "egressd"
}

// asked are the commands that egressd in a container takes from its host.
var asked = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(^|[ (])egressd (allow|answer|ca|check|cut|deny|doctor|log|policy|reload|status|ui|why)\b`)
})

// Typed returns a text that tells people what to type, with [Program] for egressd.
func Typed(text string) string {
	if os.Getenv(ProgramVariable) == "" {
		return text
	}
	return asked().ReplaceAllStringFunc(text, func(found string) string {
		return strings.Replace(found, "egressd", Program(), 1)
	})
}

// Quote makes s one word for a POSIX shell, whatever it holds.
func Quote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Word quotes s for a shell where it has to be.
func Word(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./") == "" {
		return s
	}
	return Quote(s)
}

// Pattern quotes the text of a pattern for a shell where it has to be.
func Pattern(s string) string {
	if strings.ContainsAny(s, "*[") {
		return Quote(s)
	}
	return s
}
