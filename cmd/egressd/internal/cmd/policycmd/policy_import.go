package policycmd

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/integrations/importer"
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
		Short: "Convert another sandbox's settings to a policy file",
		Long: `Import prints a policy file that decides as the settings in FILE do. Where the result is
stricter, it says so on standard error; it is never wider. KIND is

  claude  Claude Code's settings.json: sandbox.network, and WebFetch(domain:HOST)
          under permissions. Other settings files are not read.
  srt     the settings of Anthropic's sandbox runtime
  e2b     the object of E2B's network option

An unknown setting about destinations is an error.`,
		Example: "  egressd policy import --from claude ~/.claude/settings.json > egressd.yaml",
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
	cmd.Flags().StringVar(&o.from, "from", "", "`KIND` of settings: "+strings.Join(importer.Kinds(), ", "))
	_ = cmd.RegisterFlagCompletionFunc("from", cobra.FixedCompletions(importer.Kinds(), cobra.ShellCompDirectiveNoFileComp))
	cli.JSONFlag(cmd, &o.json)
	return cmd
}

type policyImportOptions struct {
	from string
	json bool
}

// imported is what policy import tells a script.
type imported struct {
	Policy   string   `json:"policy"`
	Stricter []string `json:"stricter"`
	Left     []string `json:"left"`
}

func (o *policyImportOptions) run(stdout, stderr io.Writer, path string) error {
	if !slices.Contains(importer.Kinds(), o.from) {
		return hint.Misused(fmt.Errorf("--from %q: the kinds are %s", o.from, strings.Join(importer.Kinds(), ", ")), "egressd policy import --from claude FILE")
	}
	text, err := durable.Plain(path, 1<<20)
	if err != nil {
		return hint.Failed(err, "egressd policy import --from "+o.from+" FILE")
	}
	in, err := importer.Read(o.from, text)
	if err != nil {
		return hint.Failed(fmt.Errorf("%s: %w", path, err), "docs/how-to/move-to-egressd.md says how to write it by hand")
	}
	yaml := importedPolicy(o.from, in)
	if err := compiles(yaml); err != nil {
		return hint.Failed(fmt.Errorf("%s: it cannot be said as a policy: %w", path, err), "take that out of a copy of "+path+", and import the copy")
	}
	if o.json {
		return cli.PrintJSON(stdout, imported{yaml, in.Stricter, append([]string{}, in.Left...)})
	}
	if _, err := io.WriteString(stdout, yaml); err != nil {
		return err
	}
	for _, s := range in.Stricter {
		fmt.Fprintf(stderr, "egressd: stricter: %s\n", s)
	}
	if len(in.Left) > 0 {
		fmt.Fprintf(stderr, "egressd: left out, as it is not about destinations: %s\n", printable.Text(strings.Join(in.Left, ", ")))
	}
	return nil
}

func importedPolicy(from string, in *importer.Import) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# From the settings of %s, by egressd policy import.\nversion: 1\n", from)
	if in.AllowDefault {
		b.WriteString("default: allow\n")
	}
	for _, list := range []struct {
		key      string
		patterns []string
	}{{"allow", in.Allow}, {"deny", in.Deny}} {
		if len(list.patterns) > 0 {
			fmt.Fprintf(&b, "%s:\n", list.key)
		}
		for _, p := range list.patterns {
			fmt.Fprintf(&b, "  - %s\n", strconv.QuoteToASCII(p))
		}
	}
	return b.String()
}

func compiles(yaml string) error {
	parsed, err := file.Parse("the policy", []byte(yaml))
	if err == nil {
		_, err = parsed.Compile(file.Environment{})
	}
	return err
}
