package other

import (
	"fmt"
	"io"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/sandbox/environ"
)

// printTrust says how each kind of program is made to trust the bundle at path. path may be empty.
func printTrust(w io.Writer, path, config string) {
	bundle := "BUNDLE"
	if path != "" {
		bundle = shell.Word(path)
	}
	fmt.Fprintf(w, "egressd: put it over the bundle of the sandbox's system, or tell each program, with the path that the sandbox sees:\n")
	for _, t := range environ.Trusts() {
		fmt.Fprintf(w, "  %-26s%s\n", t.Who, printable.Text(t.Instruction(bundle)))
	}
	fmt.Fprintf(w, "egressd: CA is what egressd ca%s --pem prints\n", config)
	hint.Sayf(w, "egressd env%s --ca %s", config, bundle)
}
