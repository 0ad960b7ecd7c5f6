// Command egressd is a local egress firewall for sandboxes in which untrusted code runs. It decides by policy
// what a sandbox may send, dials only what it decided, and logs both.
//
// The commands are in internal/cmd, one folder for each group of egressd --help and one file for each command.
package main

import (
	"io"
	"log"
	"os"

	"github.com/egressd/egressd/cmd/egressd/internal/cmd"
	"github.com/spf13/cobra"
)

func main() {
	log.SetOutput(io.Discard)          // libraries log there what an upstream can provoke without limit
	cobra.EnableCommandSorting = false // the help lists commands in the order of their groups
	os.Exit(cmd.Run(os.Args[1:], os.Stdout, os.Stderr))
}
