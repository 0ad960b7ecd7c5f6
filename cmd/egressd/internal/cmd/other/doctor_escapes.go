//go:build linux

package other

import (
	"fmt"
	"io"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon/doctor"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/sandbox/jail"
)

// tryEscapes makes the sandbox of egressd run, and tries the known escapes from inside.
func (o *doctorOptions) tryEscapes(w io.Writer) error {
	tried, _, err := doctor.Selftest(o.redirect)
	if err != nil {
		return hint.Unsure(err)
	}
	return sayAttempts(w, tried, o.json)
}

// sayAttempts prints what was tried, and returns 1 as a status where one got out.
func sayAttempts(w io.Writer, tried []jail.WayOut, asJSON bool) error {
	var out int
	for _, a := range tried {
		if a.Escaped != "" {
			out++
		}
		if asJSON {
			if err := cli.PrintJSON(w, struct {
				jail.WayOut
				OK bool `json:"ok"`
			}{a, a.Escaped == ""}); err != nil {
				return err
			}
			continue
		}
		if a.Escaped != "" {
			fmt.Fprintf(w, "✗ %s: %s\n", a.Name, printable.Text(a.Escaped))
			continue
		}
		fmt.Fprintf(w, "✓ %s\n", a.Name)
	}
	if !asJSON {
		fmt.Fprintf(w, "self-test %d/%d\n", len(tried)-out, len(tried))
	}
	if out > 0 {
		return cli.Status(cli.ExitFailed)
	}
	return nil
}
