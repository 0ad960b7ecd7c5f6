package policy

import (
	"errors"
	"io"
	"path/filepath"
	"slices"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/edit"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/rego"
	"github.com/spf13/cobra"
)

func newFmt() *cobra.Command {
	var write, diff, rewrite bool
	cmd := &cobra.Command{
		Use:   "fmt [-w|-d] [--rewrite-v0] PATH…",
		Short: "Format Rego files",
		Long: `Fmt prints the Rego files at PATH in the layout of "opa fmt". -d shows only the
changes, -w writes the files. --rewrite-v0 rewrites modules of Rego v0, as they were
written before OPA 1.0.

Exit codes: 0 done (with -d: nothing to change); 1 with -d: something to change;
2 a file could not be read or is not Rego.`,
		Example: `  egressd policy fmt -d policy/
  egressd policy fmt -w policy/egress.rego
  egressd policy fmt -w --rewrite-v0 policy/`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.Refuse(cmd, "config", "json"); err != nil {
				return err
			}
			format := rego.Format
			if rewrite {
				format = rego.Rewrite
			}
			return formatFiles(cmd.OutOrStdout(), args, format, write, diff)
		},
	}
	cmd.Flags().BoolVarP(&write, "write", "w", false, "write the files instead of printing them")
	cmd.Flags().BoolVarP(&diff, "diff", "d", false, "print only the changes")
	cmd.Flags().BoolVar(&rewrite, "rewrite-v0", false, "rewrite modules of Rego v0")
	return cmd
}

func formatFiles(stdout io.Writer, paths []string, format func(rego.Source) ([]byte, error), write, diff bool) error {
	switch {
	case len(paths) == 0:
		return hint.Misused(errors.New("there is nothing to format"), "egressd policy fmt policy/")
	case write && diff:
		return hint.Misused(errors.New("-w writes the changes and -d only shows them"), "egressd policy fmt -d "+shell.Word(paths[0]))
	}
	sources, err := config.ReadRego(paths)
	if err != nil {
		return hint.Misused(err, "egressd policy fmt FILE, or a folder with .rego files")
	}
	sources = slices.DeleteFunc(sources, func(s rego.Source) bool { return filepath.Ext(s.Name) != ".rego" })
	if len(sources) == 0 {
		return hint.Misused(errors.New("there is no file that ends in .rego"), "egressd policy fmt FILE, or a folder with .rego files")
	}
	changed := false
	for _, s := range sources {
		text, err := format(s)
		if err != nil {
			return hint.Misused(err, "correct that, then egressd policy fmt "+shell.Word(s.Name))
		}
		changed = changed || string(text) != string(s.Text)
		if err := putFormatted(stdout, s, text, write, diff); err != nil {
			return err
		}
	}
	if diff && changed {
		return cli.Status(cli.ExitFailed)
	}
	return nil
}

func putFormatted(stdout io.Writer, s rego.Source, text []byte, write, diff bool) error {
	same := string(text) == string(s.Text)
	switch {
	case (write || diff) && same:
		return nil
	case write:
		if _, err := config.ReplaceFile(s.Name, s.Text, text); err != nil {
			return hint.Failed(err, "egressd policy fmt -d "+shell.Word(s.Name))
		}
		return nil
	case diff:
		_, err := io.WriteString(stdout, edit.UnifiedDiff(s.Name, s.Name, string(s.Text), string(text)))
		return err
	}
	_, err := stdout.Write(text)
	return err
}
