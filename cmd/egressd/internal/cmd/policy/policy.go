package policy

import (
	"cmp"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/spf13/cobra"
	"io"
)

func newPolicy() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check, test, suggest, import, build and show policies",
		Long: `These commands work on the policy file, the organisation's file, trusted projects
and the Rego that they name. With a PATH they work on that policy file, on the
policy file in that folder, or on Rego files and folders alone. They name the file
that they judge and need no daemon. Only push sends anything.

egressd check URL is short for egressd policy check URL.`,
		Example: `  egressd policy check
  egressd policy check -v https://example.com/
  egressd policy test policy/
  egressd policy fmt -w policy/`,
		RunE: cli.RunGroup,
	}
	f := &policyFlags{}
	f.add(cmd)
	cli.Inherit(cmd, "config", "json")
	cmd.AddCommand(newCheck(f), newList(f), newSuggest(f), newReplay(f), newDiff(f), newTest(f), newFmt(), newShow(f), newTrust(f),
		newImport(f), newExport(f), newBuild(f), newVerify(f), newPush(f))
	return cmd
}

// policyFlags are the flags of egressd policy, which the commands below it inherit.
type policyFlags struct {
	config string
	json   bool
}

func (f *policyFlags) add(cmd *cobra.Command) {
	cli.ConfigFlag(cmd, &f.config)
	cli.JSONFlag(cmd, &f.json)
}

type policyOptions struct {
	config string
	above  string // the organisation's file, where a test has another
	json   bool
	stderr io.Writer // where the file that is judged is named; nil: nowhere
}

func (o *policyOptions) load() (*config.Config, error) {
	c, err := config.LoadUnder(o.config, cmp.Or(o.above, config.OrganisationPath))
	if err == nil {
		c.Patient = true
	}
	if err == nil && o.stderr != nil && !o.json {
		sayJudged(o.stderr, c, o.config != "")
	}
	return c, err
}
