package main

import (
	"fmt"
	"strings"

	"github.com/egressd/egressd/internal/spelling"
	"github.com/spf13/cobra"
)

// commandNames are the names of the commands below cmd that are not hidden.
func commandNames(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	return names
}

// runGroup is what a command of commands does alone, and what a command of it
// that does not exist comes to.
func runGroup(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	names := commandNames(cmd)
	near := spelling.Nearest(args[0], names)
	if near == "" {
		near = names[0]
	}
	return misused(fmt.Errorf("there is no command %q; there is %s", cmd.Name()+" "+args[0], strings.Join(names, ", ")), cmd.CommandPath()+" "+near)
}

// flagError is what a flag that is none comes to: what to type is the help of its command.
func flagError(cmd *cobra.Command, err error) error {
	return misused(err, cmd.CommandPath()+" --help")
}

// noArguments refuses arguments with the line to type instead.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return misused(fmt.Errorf("%s takes no argument, and was given %q", cmd.CommandPath(), args[0]), cmd.CommandPath()+" --help")
}

// configFlag adds --config to a command that reads the policy or the log.
func configFlag(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVar(path, "config", "", "policy `FILE` (default: the first that exists of $XDG_CONFIG_HOME/egressd/egressd.yaml, ~/.config/egressd/egressd.yaml, /etc/egressd/egressd.yaml)")
}

// jsonFlag adds --json to a command.
func jsonFlag(cmd *cobra.Command, on *bool) {
	cmd.Flags().BoolVar(on, "json", false, "print JSON, one object a line")
}

// oneArgument refuses any number of arguments but one.
func oneArgument(what, example string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			return nil
		}
		return misused(fmt.Errorf("%s takes %s, and was given %d arguments", cmd.CommandPath(), what, len(args)), example)
	}
}
