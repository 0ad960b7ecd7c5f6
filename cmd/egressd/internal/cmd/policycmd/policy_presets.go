package policycmd

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"text/tabwriter"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy/file"
	"github.com/spf13/cobra"
)

func newPolicyPresetsCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "presets [NAME]",
		Short: "List the presets, or print one",
		Long: `Presets lists the rule sets that ship with egressd, for the key presets and for
egressd run --preset. CHECKED is the version of the program with which somebody tried
the preset, and the day; a dash says that this is not recorded. With a NAME it prints
the rules of that preset as they count.

Exit codes: 0 done; 2 there is no such preset.`,
		Example: `  egressd policy presets
  egressd policy presets claude-code
  egressd policy presets --json`,
		ValidArgsFunction: cobra.FixedCompletions(file.Presets(), cobra.ShellCompDirectiveNoFileComp),
		Args:              cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return printPreset(cmd, args)
			}
			return listPresets(cmd.OutOrStdout(), asJSON)
		},
	}
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}

func printPreset(cmd *cobra.Command, args []string) error {
	if err := cli.NoArguments(cmd, args[1:]); err != nil {
		return err
	}
	text, err := file.PresetText(args[0])
	if err != nil {
		return hint.Misused(err, "egressd policy presets")
	}
	_, err = cmd.OutOrStdout().Write(text)
	return err
}

// A presetLine is what the list says of a preset.
type presetLine struct {
	Name    string `json:"name"`
	Rules   int    `json:"rules"`
	Checked string `json:"checked,omitempty"` // "Codex 0.169.0 on 2026-11-24"
	About   string `json:"about"`             // the first sentence of its comment
}

var presetChecked = regexp.MustCompile(`Checked with (.+ on \d{4}-\d{2}-\d{2})\.`)

func listPresets(stdout io.Writer, asJSON bool) error {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	if !asJSON {
		fmt.Fprintln(table, "NAME\tRULES\tCHECKED\tABOUT")
	}
	for _, name := range file.Presets() {
		line, err := presetLineOf(name)
		if err != nil {
			return err
		}
		if asJSON {
			if err := cli.PrintJSON(stdout, line); err != nil {
				return err
			}
			continue
		}
		checked := line.Checked
		if checked == "" {
			checked = "–"
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\n", line.Name, line.Rules, checked, brief(line.About))
	}
	return table.Flush()
}

func presetLineOf(name string) (*presetLine, error) {
	text, err := file.PresetText(name)
	if err != nil {
		return nil, err
	}
	rules, err := file.Parse("preset "+name, text)
	if err != nil {
		return nil, err
	}
	var words []string
	for line := range strings.Lines(string(text)) {
		comment, ok := strings.CutPrefix(line, "#")
		if !ok {
			break
		}
		words = append(words, strings.TrimSpace(comment))
	}
	comment := strings.Join(words, " ")
	line := &presetLine{Name: name, Rules: len(rules.Allow)}
	line.About, _, _ = strings.Cut(comment, ". ")
	line.About = strings.TrimSuffix(line.About, ".")
	if found := presetChecked.FindStringSubmatch(comment); found != nil {
		line.Checked = found[1]
	}
	return line, nil
}
