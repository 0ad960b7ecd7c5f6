package policycmd

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/integrations/peers"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/policy/file"
	"github.com/spf13/cobra"
)

func newPolicyImportCommand() *cobra.Command {
	var o policyImportOptions
	cmd := &cobra.Command{
		Use:   "import --from KIND FILE",
		Short: "Convert another tool's settings to a policy file",
		Long: `Import prints a policy file that decides as the settings in FILE do. On standard error it says
where the result is stricter and where it is wider. It is wider only with
--allow-wider: without it, what has no equal is left out. An unknown setting about
destinations is an error. Files that FILE names are not read. KIND is

` + kindsOf(peers.Kinds()),
		Example: `  egressd policy import --from claude ~/.claude/settings.json > egressd.yaml
  sbx policy ls --json > sbx.json && egressd policy import --from docker sbx.json
  egressd policy import --from smokescreen --name ci-agent acl.yaml`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return hint.Misused(fmt.Errorf("%s takes one file, and was given %d", cmd.CommandPath(), len(args)), "egressd policy import --from claude ~/.claude/settings.json")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0])
		},
	}
	cmd.Flags().StringVar(&o.from, "from", "", "`KIND` of settings, as listed above")
	cmd.Flags().StringVar(&o.Name, "name", "", "`NAME` of the service of smokescreen or the profile of Codex, if FILE has several")
	cmd.Flags().BoolVar(&o.Widen, "allow-wider", false, "take what has no equal by rules that allow more")
	_ = cmd.RegisterFlagCompletionFunc("from", cobra.FixedCompletions(peers.Names(peers.Kinds()), cobra.ShellCompDirectiveNoFileComp))
	cli.JSONFlag(cmd, &o.json)
	return cmd
}

// kindsOf lists kinds with what their files are.
func kindsOf(kinds []peers.Kind) string {
	var b strings.Builder
	for _, k := range kinds {
		fmt.Fprintf(&b, "  %-13s  %s\n", k.Name, k.File)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// knownKind returns an error for a kind that is none of kinds. usage is the hint, unless the kind was removed.
func knownKind(flag, kind string, kinds []peers.Kind, usage string) error {
	names := peers.Names(kinds)
	if slices.Contains(names, kind) {
		return nil
	}
	if instead := peers.Removed(kind); instead != "" {
		return hint.Misused(fmt.Errorf("%s %s: this version has no such kind any more", flag, kind), instead)
	}
	return hint.Misused(fmt.Errorf("%s %q: the kinds are %s", flag, kind, strings.Join(names, ", ")), usage)
}

type policyImportOptions struct {
	peers.Options
	from string
	json bool
}

// converted is what policy import and export tell a script.
type converted struct {
	Policy   string   `json:"policy"`
	Stricter []string `json:"stricter"`
	Wider    []string `json:"wider"`
	Left     []string `json:"left"`
}

func (o *policyImportOptions) run(stdout, stderr io.Writer, path string) error {
	if err := knownKind("--from", o.from, peers.Kinds(), "egressd policy import --from claude FILE"); err != nil {
		return err
	}
	text, err := durable.Plain(path, 1<<20)
	if err != nil {
		return hint.Failed(err, "egressd policy import --from "+o.from+" FILE")
	}
	c, err := peers.Import(o.from, text, o.Options)
	if err != nil {
		return hint.Failed(fmt.Errorf("%s: %w", path, err), "docs/how-to/move-to-egressd.md says how to write it by hand")
	}
	if err := compiles(c.Text); err != nil {
		return hint.Failed(fmt.Errorf("%s: it cannot be said as a policy: %w", path, err), "take that out of a copy of "+path+", and import the copy")
	}
	return printConverted(stdout, stderr, c, o.json)
}

func printConverted(stdout, stderr io.Writer, c *peers.Conversion, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(stdout, converted{c.Text, append([]string{}, c.Stricter...), append([]string{}, c.Wider...), append([]string{}, c.Left...)})
	}
	if _, err := io.WriteString(stdout, c.Text); err != nil {
		return err
	}
	for _, list := range []struct {
		word  string
		lines []string
	}{{"stricter", c.Stricter}, {"wider", c.Wider}} {
		for _, s := range list.lines {
			fmt.Fprintf(stderr, "egressd: %s: %s\n", list.word, printable.Text(s))
		}
	}
	if len(c.Left) > 0 {
		fmt.Fprintf(stderr, "egressd: left out, as it is not about destinations: %s\n", printable.Text(strings.Join(c.Left, ", ")))
	}
	return nil
}

func compiles(yaml string) error {
	parsed, err := file.Parse("the policy", []byte(yaml))
	if err == nil {
		_, err = parsed.Compile(file.Environment{})
	}
	return err
}
