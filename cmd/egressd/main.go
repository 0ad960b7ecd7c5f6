// Command egressd is a local egress firewall for sandboxes in which untrusted
// code runs. Everything a sandbox sends out goes through it: it decides by
// policy, dials only what it decided, and keeps a log of both.
//
// Data goes to standard output and talk to standard error. Every error is
// followed by a line that says what to type next.
package main

import (
	"io"
	"log"
	"os"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
)

func main() {
	log.SetOutput(io.Discard) // where libraries write what an upstream can provoke at will
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program but for the process: it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	root := rootCommandFor(args)
	root.SetArgs(negated(args))
	root.SetOut(stdout)
	root.SetErr(stderr)
	return cli.Report(stderr, root.Execute())
}
