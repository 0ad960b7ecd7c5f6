// Package other has the commands that belong to no other group: ca, doctor, version, completion and man.
package other

import "github.com/spf13/cobra"

// Commands returns the commands of the group in the order of the help.
func Commands() []*cobra.Command {
	return []*cobra.Command{
		newCA(),
		newDoctor(),
		newVersion(),
		newCompletion(),
		newMan(),
	}
}
