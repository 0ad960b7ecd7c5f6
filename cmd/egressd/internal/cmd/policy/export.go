package policy

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/integrations/peers"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/spf13/cobra"
)

func newExport(f *policyFlags) *cobra.Command {
	var o policyExportOptions
	cmd := &cobra.Command{
		Use:   "export --to KIND [PATH]",
		Short: "Convert a policy file to another tool's settings",
		Long: `Export prints the lists and presets of a policy file in the form of another tool. On standard
error it says where the result is stricter and where it is wider. If it would be
wider, export refuses, unless --allow-wider is given. That also keeps rules that
the other tool can only express by allowing more. A rule that asks becomes a deny.
KIND is

` + kindsOf(peers.Targets()),
		Example: `  egressd policy export --to srt > srt-settings.json
  egressd policy export --to e2b --allow-wider egressd.yaml`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.config, o.json = f.config, f.json
			args, err := takePolicy(args, &o.config)
			if err != nil {
				return err
			}
			if err := cli.NoArguments(cmd, args); err != nil {
				return err
			}
			return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&o.to, "to", "", "`KIND` of settings, as listed above")
	cmd.Flags().BoolVar(&o.Widen, "allow-wider", false, "let the result allow more than the policy does")
	_ = cmd.RegisterFlagCompletionFunc("to", cobra.FixedCompletions(peers.Names(peers.Targets()), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

type policyExportOptions struct {
	peers.Options
	to, config string
	json       bool
}

func (o *policyExportOptions) run(stdout, stderr io.Writer) error {
	if err := knownKind("--to", o.to, peers.Targets(), "egressd policy export --to srt"); err != nil {
		return err
	}
	cfg, err := config.Load(o.config)
	if err != nil {
		return err
	}
	if _, err := cfg.Compile(); err != nil {
		return err
	}
	rules, err := exportable(cfg)
	if err != nil {
		return err
	}
	if len(cfg.File.AllowFiles) > 0 {
		fmt.Fprintln(stderr, "egressd: stricter: allow_file is not exported")
	}
	c, err := peers.Export(o.to, rules, o.Options)
	var wider *peers.WiderError
	switch {
	case errors.As(err, &wider):
		for _, s := range wider.Wider {
			fmt.Fprintf(stderr, "egressd: wider: %s\n", s)
		}
		return hint.Failed(fmt.Errorf("a policy of %s would allow more than this one, so nothing was written", o.to), "egressd policy export --help says what --allow-wider does")
	case err != nil:
		return err
	}
	return printConverted(stdout, stderr, c, o.json)
}

// exportable are the rules of the file, and what narrows them beside its lists.
func exportable(c *config.Config) (peers.Rules, error) {
	f := c.File
	rules := peers.Rules{Allow: f.Allow, Deny: f.Deny, Ask: f.Ask, Open: f.Default == policy.Allow}
	var err error
	if rules.Presets, err = file.PresetRules(f.Presets...); err != nil {
		return rules, err
	}
	lists := func(s file.SandboxRules) bool { return s.Narrowed || len(s.Deny)+len(s.AlsoAllow)+len(s.Rego) > 0 }
	for _, beside := range []struct {
		there bool
		what  string
	}{
		{len(f.Rego) > 0, "Rego"},
		{len(f.DenyFiles) > 0, "deny_file"},
		{c.Organisation != nil, "the organisation's policy"},
		{len(c.Projects) > 0, "a project's policy"},
		{slices.ContainsFunc(f.Sandboxes, lists), "what sandboxes list for themselves"},
		{len(f.Canaries) > 0, "the search for canaries"},
	} {
		if beside.there {
			rules.Beside = append(rules.Beside, beside.what)
		}
	}
	return rules, nil
}
