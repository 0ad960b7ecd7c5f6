package cli

import (
	"github.com/egressd/egressd/config"
	"github.com/spf13/cobra"
)

// CompleteSandboxes completes the names of the sandboxes that the policy file at *path lists.
func CompleteSandboxes(path *string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		cfg, err := config.Load(*path)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, s := range cfg.File.Sandboxes {
			names = append(names, s.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
