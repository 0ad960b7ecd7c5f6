// Package log has the commands that read the audit log: log and the commands below it, why and ui.
package log

import "github.com/spf13/cobra"

// Commands returns the commands of the group in the order of the help.
func Commands() []*cobra.Command {
	return []*cobra.Command{newLog(), newWhy(), newUI()}
}
