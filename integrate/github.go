package integrate

import _ "embed"

//go:embed github.yml
var github string

// GitHub returns a workflow with egressd's action.
func GitHub(path string) Set {
	return Set{
		Files: []Made{{path, github, 0o644}},
		Notes: []string{
			"pin the actions to a commit, and write the policy into .github/egressd.yaml",
			"a pull request can change what it brings along: for code of strangers take the policy from the base branch",
		},
	}
}
