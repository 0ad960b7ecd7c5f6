package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/explain"
	"github.com/egressd/egressd/integrations/peers"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy/file"
	"github.com/spf13/cobra"
)

func newImport(f *policyFlags) *cobra.Command {
	var o policyImportOptions
	cmd := &cobra.Command{
		Use:   "import --from KIND FILE",
		Short: "Convert another tool's settings to a policy file",
		Long: `Import prints a policy file that decides as the settings in FILE do; - is standard input.
On standard error it says where the result is stricter and where it is wider, and
counts the lines. It is wider only with --allow-wider: without it, what has no equal
is left out. A setting that the import does not know is an error with its line. If the
result allows nothing, the exit code is 1. Files that FILE names are not read. KIND is

` + kindsOf(peers.Kinds()),
		Example: `  egressd policy import --from claude ~/.claude/settings.json > egressd.yaml
  sbx policy ls --json | egressd policy import --from docker -
  egressd policy import --from smokescreen --name ci-agent acl.yaml`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return hint.Misused(fmt.Errorf("%s takes one file, and was given %d", cmd.CommandPath(), len(args)), "egressd policy import --from claude ~/.claude/settings.json")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.Refuse(cmd, "config"); err != nil {
				return err
			}
			o.json = f.json
			return o.run(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0])
		},
	}
	cmd.Flags().StringVar(&o.from, "from", "", "`KIND` of settings, as listed above")
	cmd.Flags().StringVar(&o.Name, "name", "", "`NAME` of the service of smokescreen, the profile of Codex or the job of a workflow, if FILE has several")
	cmd.Flags().BoolVar(&o.Widen, "allow-wider", false, "take what has no equal by rules that allow more")
	_ = cmd.RegisterFlagCompletionFunc("from", cobra.FixedCompletions(peers.Names(peers.Kinds()), cobra.ShellCompDirectiveNoFileComp))
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

// imported is what policy import tells a script.
type imported struct {
	converted
	Allowed int `json:"allowed"`
	Asked   int `json:"asked"`
	Denied  int `json:"denied"`
	Lost    int `json:"lost"`
}

func convertedOf(c *peers.Conversion) converted {
	return converted{c.Text, append([]string{}, c.Stricter...), append([]string{}, c.Wider...), append([]string{}, c.Left...)}
}

func (o *policyImportOptions) run(stdin io.Reader, stdout, stderr io.Writer, path string) error {
	if err := knownKind("--from", o.from, peers.Kinds(), "egressd policy import --from claude FILE"); err != nil {
		return err
	}
	text, err := readSettings(stdin, path)
	if err != nil {
		return hint.Failed(err, "egressd policy import --from "+o.from+" FILE")
	}
	file := path
	if path == "-" {
		path = "standard input"
	}
	c, err := peers.Import(o.from, text, o.Options)
	if err != nil {
		return hint.Failed(fmt.Errorf("%s: %w", path, err), "egressd help move-to-egressd says how to write it by hand")
	}
	if err := compiles(c.Text); err != nil {
		return hint.Failed(fmt.Errorf("%s: it cannot be said as a policy: %w", path, err), "take that out of a copy of "+path+", and import the copy")
	}
	if o.json {
		err = cli.PrintJSON(stdout, imported{convertedOf(c), c.Allowed, c.Asked, c.Denied, c.Lost})
	} else {
		err = printConverted(stdout, stderr, c, false)
		fmt.Fprintf(stderr, "egressd: the policy has %s; %s\n", counted(c), lost(c))
		fmt.Fprintf(stderr, "egressd: %s\n", printable.Text(opensBeside(c.Text)))
	}
	if err != nil || !c.Nothing() {
		return err
	}
	next := "egressd run --learn -- CMD records what a program needs, and egressd policy suggest --run last proposes rules"
	if c.Widens > 0 {
		next = "egressd policy import --from " + o.from + " --allow-wider " + shell.Word(file) + " takes what was left out by rules that allow more"
	}
	return hint.Failed(fmt.Errorf("%s: the policy allows nothing", path), next)
}

// mostSettings is how many bytes a file of settings may have.
const mostSettings = 1 << 20

func readSettings(stdin io.Reader, path string) ([]byte, error) {
	if path != "-" {
		return durable.Plain(path, mostSettings)
	}
	text, err := io.ReadAll(io.LimitReader(stdin, mostSettings+1))
	if len(text) > mostSettings {
		return nil, fmt.Errorf("standard input has more than %d bytes", mostSettings)
	}
	return text, err
}

// counted says how many lines the lists of an imported policy have.
func counted(c *peers.Conversion) string {
	text := fmt.Sprintf("%d allow, %d ask, %d deny", c.Allowed, c.Asked, c.Denied)
	if c.Open {
		text += ", and default: allow"
	}
	return text
}

func lost(c *peers.Conversion) string {
	switch {
	case c.Lost == 0:
		return "no line of the original is lost"
	case c.Widens == 0:
		return fmt.Sprintf("%d are stricter or left out, as listed above", c.Lost)
	}
	return fmt.Sprintf("%d are stricter or left out, as listed above; --allow-wider takes %d of them by rules that allow more", c.Lost, c.Widens)
}

func printConverted(stdout, stderr io.Writer, c *peers.Conversion, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(stdout, convertedOf(c))
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

// opensBeside says what an imported policy opens and closes beside the policy file.
func opensBeside(text string) string {
	beside := "beside "
	now, err := config.Load("")
	var none *config.NotFoundError
	switch {
	case errors.As(err, &none):
		beside = "beside a policy that allows nothing"
		now, err = config.WithoutFile(config.OrganisationPath)
	case err == nil:
		beside += now.Path
	}
	var next *config.Config
	if err == nil {
		next, err = config.New("the policy", []byte(text), config.OrganisationPath)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), explain.ToldWithin)
		defer cancel()
		all, unsure, failed := explain.Compare(ctx, now, next, nil)
		if failed == nil {
			return beside + ", it " + explain.Sentence(all, unsure)
		}
		err = failed
	}
	return "it cannot be compared with the policy file: " + err.Error()
}

func compiles(yaml string) error {
	parsed, err := file.Parse("the policy", []byte(yaml))
	if err == nil {
		_, err = parsed.Compile(file.Environment{})
	}
	return err
}
