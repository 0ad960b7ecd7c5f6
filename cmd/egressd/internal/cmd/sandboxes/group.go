// Package sandboxes has the commands that put egressd around a program that something else starts: a container, a
// pod, a network namespace.
package sandboxes

import "github.com/spf13/cobra"

// Commands returns the commands of the group in the order of the help.
func Commands() []*cobra.Command {
	return []*cobra.Command{
		newEnter(),
		newAttach(),
		newDocker(),
		newPodInit(),
		newPodRun(),
	}
}
