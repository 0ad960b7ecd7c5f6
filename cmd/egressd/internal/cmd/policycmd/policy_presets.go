package policycmd

import (
	"cmp"
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
the preset, and the day. READ is the last day on which somebody read a public page that
names its hosts. A dash says that there is none. With a NAME it prints the rules of that
preset as they count, with the addresses of the pages, and the hosts that none names.

Exit codes: 0 done; 2 there is no such preset.`,
		Example: `  egressd policy presets
  egressd policy presets claude-code
  egressd policy presets --json`,
		ValidArgsFunction: cobra.FixedCompletions(file.Presets(), cobra.ShellCompDirectiveNoFileComp),
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

	Read   []readPage `json:"read,omitempty"`
	Unread []string   `json:"unread,omitempty"` // hosts that none of these pages names; * stands for any text
}

// A readPage is a public page that names hosts of a preset.
type readPage struct {
	On   string `json:"on"` // the day, "2026-11-26"
	Page string `json:"page"`
}

var (
	presetChecked = regexp.MustCompile(`Checked with (.+ on \d{4}-\d{2}-\d{2})\.`)
	presetRead    = regexp.MustCompile(`(?m)^# Read on (\d{4}-\d{2}-\d{2}): (https://\S+)$`)
	presetUnread  = regexp.MustCompile(`(?m)^# On no page that was read on \d{4}-\d{2}-\d{2}: (.+)$`)
)

func listPresets(stdout io.Writer, asJSON bool) error {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	if !asJSON {
		fmt.Fprintln(table, "NAME\tRULES\tCHECKED\tREAD\tABOUT")
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
		read := ""
		for _, page := range line.Read {
			read = max(read, page.On)
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\n", line.Name, line.Rules, cmp.Or(line.Checked, "–"), cmp.Or(read, "–"), brief(line.About))
	}
	return table.Flush()
}

func presetLineOf(name string) (*presetLine, error) {
	text, err := file.PresetText(name)
	if err != nil {
		return nil, err
	}
	rules, err := file.PresetRules(name)
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
	line := &presetLine{Name: name, Rules: len(rules)}
	line.About, _, _ = strings.Cut(comment, ". ")
	line.About = strings.TrimSuffix(line.About, ".")
	if found := presetChecked.FindStringSubmatch(comment); found != nil {
		line.Checked = found[1]
	}
	for _, found := range presetRead.FindAllSubmatch(text, -1) {
		line.Read = append(line.Read, readPage{On: string(found[1]), Page: string(found[2])})
	}
	if found := presetUnread.FindSubmatch(text); found != nil {
		line.Unread = strings.Split(string(found[1]), ", ")
	}
	return line, nil
}
