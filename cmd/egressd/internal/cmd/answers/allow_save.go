package answers

import (
	"context"
	"fmt"
	"io"
	"path/filepath"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config/edit"
	"github.com/egressd/egressd/config/explain"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
)

// write replaces the policy file, and shows what changed.
func write(a *edit.Addition, stderr io.Writer) error {
	fmt.Fprint(stderr, a.Diff())
	target, watched, err := a.Write()
	if err != nil {
		return err
	}
	if a.Fresh() {
		fmt.Fprintf(stderr, "egressd: wrote %s, which has that line alone; for coding agents: egressd init --print\n", printable.Text(target))
		return nil
	}
	fmt.Fprintf(stderr, "egressd: wrote %s\n", printable.Text(target))
	if !watched {
		hint.Sayf(stderr, "send SIGHUP to egressd serve, which watches %s and not where that link leads", filepath.Dir(a.Path))
		return nil
	}
	hint.Sayf(stderr, "run the program again; a running egressd serve reads the file by itself")
	return nil
}

// printNew prints the policy file as it would be written.
func printNew(a *edit.Addition, stdout, stderr io.Writer) error {
	before, after := a.Texts()
	if len(a.Added) == 0 {
		_, err := io.WriteString(stdout, before)
		return err
	}
	fmt.Fprint(stderr, a.Diff())
	_, err := io.WriteString(stdout, after)
	return err
}

// A saved is the JSON output of --save.
type saved struct {
	Path     string    `json:"path"`
	Saved    bool      `json:"saved"`
	Added    []string  `json:"added"`
	Allowed  *[]string `json:"already_allowed,omitempty"` // of allow
	Denied   *[]string `json:"already_denied,omitempty"`  // of deny
	Warnings []string  `json:"warnings,omitempty"`
	Opens    string    `json:"opens,omitempty"` // and closes, in words
	Policy   string    `json:"policy"`          // digest of what the file says now
}

// finish writes the lines that were judged, and says so.
func (o *options) finish(a *edit.Addition, stdout, stderr io.Writer) error {
	past := map[string]string{"allow": "allowed", "deny": "denied"}[o.verdict]
	for _, l := range a.Already {
		fmt.Fprintf(stderr, "egressd: %s is %s already\n", printable.Text(l.String()), past)
	}
	for _, w := range a.Warnings {
		fmt.Fprintf(stderr, "egressd: warning: %s\n", printable.Text(w))
	}
	opens := ""
	if len(a.Added) > 0 {
		opens = explain.Told(context.Background(), a.Sides(), a.Near()...)
		fmt.Fprintf(stderr, "egressd: that %s\n", printable.Text(opens))
	}
	switch {
	case o.print:
		return printNew(a, stdout, stderr)
	case len(a.Added) > 0:
		if err := write(a, stderr); err != nil {
			return err
		}
	}
	if !o.json {
		return nil
	}
	done := saved{Path: a.Path, Saved: len(a.Added) > 0, Added: textsOf(a.Added), Warnings: a.Warnings, Opens: opens, Policy: a.Digest()}
	already := textsOf(a.Already)
	if o.verdict == "deny" {
		done.Denied = &already
	} else {
		done.Allowed = &already
	}
	return cli.PrintJSON(stdout, done)
}
