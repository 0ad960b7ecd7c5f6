//go:build !linux

package other

import (
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/spf13/cobra"
)

func newDoctor() *cobra.Command {
	return cli.OnLinux(cli.ExitFailed, "doctor", "Check this machine for problems that stop or bypass egressd", "egressd policy check")
}
