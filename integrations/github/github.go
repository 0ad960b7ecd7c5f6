// Package github makes a workflow of GitHub Actions that runs a script with egressd's action, which is beside it.
package github

import (
	_ "embed"

	"github.com/egressd/egressd/integrations"
)

//go:embed workflow.yml
var github string

// Files returns a workflow with egressd's action.
func Files(path string) integrations.Set {
	return integrations.Set{
		Files: []integrations.Made{{Path: path, Text: github, Mode: 0o644}},
		Notes: []string{
			"pin the actions to a commit, and write the policy into .github/egressd.yaml",
			"a pull request can change what it brings along: for code of strangers take the policy from the base branch",
		},
	}
}
