//go:build !linux

package start

import (
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/spf13/cobra"
)

// NewRun returns egressd run, which has no sandbox here.
func NewRun() *cobra.Command {
	const noSandbox = 125
	return cli.OnLinux(noSandbox, "run", "Run a program that can reach only what your policy allows",
		"use egressd run in a Linux VM or container; for programs that honour proxy variables: egressd serve, then eval \"$(egressd env)\"")
}
