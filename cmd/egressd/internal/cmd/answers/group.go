// Package answers has the commands with which people allow and deny: for a while, for good, or as the answer to a
// question of a rule.
package answers

import "github.com/spf13/cobra"

// Commands returns the commands of the group in the order of the help.
func Commands() []*cobra.Command {
	return []*cobra.Command{
		newAllow(),
		newDeny(),
		newAnswer(),
	}
}
