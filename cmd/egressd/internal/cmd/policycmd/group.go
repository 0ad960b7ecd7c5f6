// Package policycmd has the commands about what a policy decides: check, policy and the commands below it,
// trust, suggest and replay.
package policycmd

import "github.com/spf13/cobra"

// Commands returns the commands of the group in the order of the help.
func Commands() []*cobra.Command {
	return []*cobra.Command{
		newCheck(),
		newPolicy(),
		newTrust(),
		newSuggest(),
		newReplay(),
	}
}
