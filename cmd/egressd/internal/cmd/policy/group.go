// Package policy has the commands about what a policy decides: policy and the commands below it, and check.
package policy

import (
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/spf13/cobra"
)

// Commands returns the commands of the group in the order of the help.
func Commands() []*cobra.Command {
	f := &policyFlags{}
	check := newCheck(f)
	f.add(check)
	check.Long = "Check is egressd policy check, for short, whose help says what it does."
	return []*cobra.Command{newPolicy(), cli.Unlist(check)}
}
