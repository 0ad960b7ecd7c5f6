package policy

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy/file"
)

// printPreset prints the rules of a preset, or as JSON what the list says of it.
func printPreset(stdout io.Writer, name string, asJSON bool) error {
	text, err := file.PresetText(name)
	if err != nil {
		return hint.Misused(err, "egressd policy show presets")
	}
	if asJSON {
		line, err := presetLineOf(name)
		if err != nil {
			return err
		}
		return cli.PrintJSON(stdout, line)
	}
	_, err = stdout.Write(text)
	return err
}

// printPresetWith prints the lines that a preset with parameters stands for.
func printPresetWith(stdout io.Writer, name string, with []string) error {
	parameters, err := file.ParsePresetParameters(with)
	if err != nil {
		return hint.Misused(err, "egressd policy show "+shell.Word(name)+" NAME=VALUE")
	}
	text, err := file.PresetWith(name, parameters)
	if err != nil {
		return hint.Misused(err, "egressd help policy-file")
	}
	_, err = stdout.Write(text)
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
	presetChecked = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`Checked with (.+ on \d{4}-\d{2}-\d{2})\.`) })
	presetRead    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^# Read on (\d{4}-\d{2}-\d{2}): (https://\S+)$`) })
	presetUnread  = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?m)^# On no page that was read on \d{4}-\d{2}-\d{2}: (.+)$`)
	})
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
	if found := presetChecked().FindStringSubmatch(comment); found != nil {
		line.Checked = found[1]
	}
	for _, found := range presetRead().FindAllSubmatch(text, -1) {
		line.Read = append(line.Read, readPage{On: string(found[1]), Page: string(found[2])})
	}
	if found := presetUnread().FindSubmatch(text); found != nil {
		line.Unread = strings.Split(string(found[1]), ", ")
	}
	return line, nil
}
