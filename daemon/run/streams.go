package run

import (
	"fmt"
	"os"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/sandbox/jail"
)

// refuseStreams returns an error if a standard stream leads out of the sandbox, such as an open folder, by which a program reaches
// what lies in it past everything that hides it.
func refuseStreams() error {
	fd, what := jail.RefusedStream()
	if what == "" {
		return nil
	}
	name, next := "standard input", "cat FILE | egressd run -- COMMAND"
	switch info, err := os.Stdin.Stat(); {
	case fd == 1:
		name, next = "standard output", "egressd run -- COMMAND | cat"
	case fd == 2:
		name, next = "standard error", "egressd run -- COMMAND 2>FILE"
	case err == nil && info.IsDir():
		next = "egressd run -- COMMAND </dev/null"
	}
	return hint.Misused(fmt.Errorf("%s is %s, which the program could reach past the sandbox", name, what), next)
}
