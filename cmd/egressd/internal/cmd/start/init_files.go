package start

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config/edit"
	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
)

// planOptions are the flags of egressd init, which the commands below it inherit: how files are written.
type planOptions struct {
	yes, print, json bool
}

// maxThere is more than any file has that init would replace, in bytes.
const maxThere = 2 << 20

// A plannedFile is what init tells a script of a file.
type plannedFile struct {
	Path    string `json:"path"`
	Written bool   `json:"written"`
	Text    string `json:"text,omitempty"`
}

// carryOut shows what a plan changes, and writes it: all of it, or nothing where a
// file is there that differs.
func (o *planOptions) carryOut(stdout, stderr io.Writer, plan integrations.Set) error {
	var changed []integrations.Made
	var there []string
	for _, f := range plan.Files {
		old, err := durable.Plain(f.Path, maxThere)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return hint.Failed(err, "egressd init --help")
		}
		exists := err == nil
		if exists && string(old) == f.Text {
			continue
		}
		changed = append(changed, f)
		if exists {
			there = append(there, f.Path)
		}
		if err := o.preview(stdout, f, string(old), exists); err != nil {
			return err
		}
	}
	if o.print {
		return o.show(stdout, plan)
	}
	if len(there) > 0 && !o.yes {
		return hint.Failed(fmt.Errorf("%s exists, and was left as it is", there[0]), "the same with --yes, to replace it as shown")
	}
	for _, f := range changed {
		if err := writePlanned(f); err != nil {
			return hint.Failed(err, "the same as a user who may write "+f.Path+", or with --print")
		}
	}
	if plan.Readable != "" && len(changed) > 0 { // whatever the umask
		if err := os.Chmod(plan.Readable, 0o755); err != nil {
			return hint.Failed(err, "chmod 755 "+shell.Word(plan.Readable))
		}
	}
	return o.done(stdout, stderr, plan, changed)
}

func (o *planOptions) preview(w io.Writer, f integrations.Made, old string, exists bool) error {
	if o.json || o.print {
		return nil
	}
	name := f.Path
	if !exists {
		name = "/dev/null"
	}
	_, err := io.WriteString(w, edit.UnifiedDiff(name, f.Path, old, f.Text))
	return err
}

// show prints the files. With several files, a comment with the path stands before each.
func (o *planOptions) show(w io.Writer, plan integrations.Set) error {
	for _, f := range plan.Files {
		if o.json {
			if err := cli.PrintJSON(w, plannedFile{Path: f.Path, Text: f.Text}); err != nil {
				return err
			}
			continue
		}
		if len(plan.Files) > 1 {
			fmt.Fprintf(w, "# %s\n", f.Path)
		}
		if _, err := io.WriteString(w, f.Text); err != nil {
			return err
		}
	}
	return nil
}

func writePlanned(f integrations.Made) error {
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
		return err
	}
	return durable.Replace(f.Path, []byte(f.Text), f.Mode)
}

func (o *planOptions) done(stdout, stderr io.Writer, plan integrations.Set, changed []integrations.Made) error {
	if o.json {
		for _, f := range changed {
			if err := cli.PrintJSON(stdout, plannedFile{Path: f.Path, Written: true}); err != nil {
				return err
			}
		}
		return nil
	}
	if len(changed) == 0 {
		fmt.Fprintln(stderr, "egressd: everything is there already")
	}
	for _, f := range changed {
		fmt.Fprintf(stderr, "egressd: wrote %s\n", printable.Text(f.Path))
	}
	for _, note := range plan.Notes {
		hint.Sayf(stderr, "%s", note)
	}
	return nil
}
