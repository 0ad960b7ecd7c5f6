// Package start has the commands to begin with: run, init, serve and env.
package start

import "github.com/spf13/cobra"

// Commands returns the commands of the group in the order of the help.
func Commands() []*cobra.Command {
	return []*cobra.Command{
		NewRun(),
		newInit(),
		newServe(),
		newEnv(),
	}
}
