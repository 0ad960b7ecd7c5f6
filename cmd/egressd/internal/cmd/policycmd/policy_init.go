package policycmd

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/edit"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/spf13/cobra"
)

// policyStarters holds the files that policy init writes.
//
//go:embed starter
var policyStarters embed.FS

// policyStarter is what policy init writes: from starter, to the folder. Names that
// begin with a dot are not embedded under them.
var policyStarter = [...]struct{ from, to string }{
	{"egressd.yaml", config.FileName},
	{"policy/egress.rego", "policy/egress.rego"},
	{"policy/egress_test.rego", "policy/egress_test.rego"},
	{"policy/lists.yaml", "policy/lists.yaml"},
	{"workflow.yml", ".github/workflows/policy.yml"},
	{"gitignore", ".gitignore"},
	{"README.md", "README.md"},
}

func newPolicyInitCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "init DIR",
		Short: "Write a repository for a policy in Rego",
		Long: `Init writes a repository to DIR: rules, lists, their tests, a policy file, a workflow
that checks, tests and packs them, and a README with the next steps. It shows what
it writes, and replaces no file.`,
		Example: `  egressd policy init egress-policy
  egressd policy test egress-policy`,
		Args: cli.OneArgument("a folder", "egressd policy init DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return initPolicy(cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0], asJSON)
		},
	}
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}

func initPolicy(stdout, stderr io.Writer, dir string, asJSON bool) error {
	for _, f := range policyStarter {
		place := filepath.Join(dir, f.to)
		switch _, err := os.Lstat(place); {
		case err == nil:
			return hint.Failed(fmt.Errorf("%s exists, and nothing was written", place), "egressd policy init DIR, where DIR is new")
		case !errors.Is(err, os.ErrNotExist):
			return hint.Failed(err, "egressd policy init DIR, where DIR is a folder, or new")
		}
	}
	for _, f := range policyStarter {
		if err := putStarter(stdout, f.from, filepath.Join(dir, f.to), asJSON); err != nil {
			return hint.Failed(err, "egressd policy init DIR, where DIR can be written")
		}
	}
	fmt.Fprintf(stderr, "egressd: wrote %d files to %s\n", len(policyStarter), printable.Text(dir))
	fmt.Fprintf(stderr, "egressd: hint: egressd policy test %s\n", printable.Text(shell.Word(dir)))
	return nil
}

func putStarter(stdout io.Writer, from, to string, asJSON bool) error {
	text, err := policyStarters.ReadFile(path.Join("starter", from))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := createFile(to, text, 0o644); err != nil {
		return err
	}
	if asJSON {
		return cli.PrintJSON(stdout, cli.Written{Path: to, Written: true})
	}
	_, err = io.WriteString(stdout, edit.UnifiedDiff("/dev/null", to, "", string(text)))
	return err
}
