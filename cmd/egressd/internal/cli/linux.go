package cli

import (
	"fmt"

	"github.com/egressd/egressd/internal/hint"
	"github.com/spf13/cobra"
)

// OnLinux returns a command that says what to use instead, for systems that are not Linux. Its exit code is code.
func OnLinux(code int, use, short, instead string) *cobra.Command {
	return &cobra.Command{
		Use:                use,
		Short:              short + " (Linux only)",
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return &hint.Error{Code: code, Err: fmt.Errorf("%s works on Linux only", cmd.CommandPath()), Hint: instead}
		},
	}
}
