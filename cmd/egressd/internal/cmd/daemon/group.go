// Package daemon has the commands that ask a running egressd serve, at its operator's listener: status, cut and
// reload.
package daemon

import "github.com/spf13/cobra"

// Commands returns the commands of the group in the order of the help.
func Commands() []*cobra.Command {
	return []*cobra.Command{
		newStatus(),
		newCut(),
		newReload(),
	}
}
