package start

import (
	"embed"
	"path"
	"path/filepath"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/internal/shell"
	"github.com/spf13/cobra"
)

// regoStarters holds the files that init rego writes.
//
//go:embed starter
var regoStarters embed.FS

// regoStarter is what init rego writes: from starter, to the folder. Names that
// begin with a dot are not embedded under them.
var regoStarter = [...]struct{ from, to string }{
	{"egressd.yaml", config.FileName},
	{"policy/egress.rego", "policy/egress.rego"},
	{"policy/egress_test.rego", "policy/egress_test.rego"},
	{"policy/lists.yaml", "policy/lists.yaml"},
	{"workflow.yml", ".github/workflows/policy.yml"},
	{"gitignore", ".gitignore"},
	{"README.md", "README.md"},
}

func newInitRegoCommand(o *planOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "rego DIR",
		Short: "Write a repository for a policy in Rego",
		Long: `Init rego writes a repository to DIR: rules, lists, their tests, a policy file, a workflow
that checks, tests and packs them, and a README with the next steps. It shows what
it writes, and replaces existing files only with --yes.`,
		Example: `  egressd init rego egress-policy
  egressd policy test egress-policy`,
		Args: cli.OneArgument("a folder", "egressd init rego DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			set, err := regoFiles(args[0])
			if err != nil {
				return err
			}
			return o.carryOut(cmd.OutOrStdout(), cmd.ErrOrStderr(), set)
		},
	}
}

// regoFiles are the files of a repository in dir.
func regoFiles(dir string) (set integrations.Set, err error) {
	for _, f := range regoStarter {
		text, err := regoStarters.ReadFile(path.Join("starter", f.from))
		if err != nil {
			return set, err
		}
		set.Files = append(set.Files, integrations.Made{Path: filepath.Join(dir, f.to), Text: string(text), Mode: 0o644})
	}
	set.Notes = []string{"egressd policy test " + shell.Word(dir)}
	return set, nil
}
