// Package sandboxes has the commands that put egressd around a program that something else starts: a container, a
// pod, a network namespace.
package sandboxes

import (
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/spf13/cobra"
)

// Commands returns the commands of the group in the order of the help, and those for which a page of their own is the way.
func Commands() []*cobra.Command {
	return []*cobra.Command{
		newEnter(),
		newAttach(),
		cli.Unlist(newDocker()),
		cli.Unlist(newPodInit()),
		cli.Unlist(newPodRun()),
	}
}
