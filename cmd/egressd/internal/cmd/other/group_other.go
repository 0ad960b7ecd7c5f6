//go:build !linux

package other

import (
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/spf13/cobra"
)

func newDoctor() *cobra.Command {
	return cli.OnLinux(cli.ExitFailed, "doctor", "Check this machine for problems that stop or bypass egressd", "egressd policy check")
}

func newSelftest() *cobra.Command {
	return cli.OnLinux(cli.ExitFailed, "selftest", "Try the known escapes from a sandbox and report any that work", "use it in a Linux VM or container")
}
