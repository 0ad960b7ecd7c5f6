package other

import (
	"fmt"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/spf13/cobra"
)

// shells are those for which there is a completion script.
var shells = []string{"bash", "zsh", "fish", "powershell"}

func newCompletion() *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print a completion script for your shell",
		Long: `Completion prints a script that completes commands, flags, and values such as ids and
sandboxes. SHELL is ` + strings.Join(shells, ", ") + `.

  bash        source <(egressd completion bash), in ~/.bashrc
  zsh         egressd completion zsh > "${fpath[1]}/_egressd"
  fish        egressd completion fish > ~/.config/fish/completions/egressd.fish
  powershell  egressd completion powershell | Out-String | Invoke-Expression`,
		Args:              cli.OneArgument("a shell", "egressd completion bash"),
		ValidArgsFunction: cobra.FixedCompletions(shells, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(out)
			}
			return hint.Misused(fmt.Errorf("there is no completion for %q", args[0]), "egressd completion bash, or zsh, fish, powershell")
		},
	}
}
