package policy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/source"
	"github.com/spf13/cobra"
)

func newSuggest(f *policyFlags) *cobra.Command {
	var o suggestOptions
	cmd := &cobra.Command{
		Use:   "suggest [FILTER…]",
		Short: "Propose rules from a recorded run --learn",
		Long: `Suggest reads what egressd run --learn allowed because no rule mentioned it, and prints
lines for a policy: each host with its port, how often it was used and by which
program, and matching tests.

The lines are a draft. A request is not right because a program made it: delete
lines that you cannot explain. Suggest never proposes private addresses. Filters
are those of egressd log.`,
		Example: `  egressd run --learn -- npm ci
  egressd policy suggest --run last
  egressd policy suggest --run last 'host:*.example.com'`,
		RunE: func(cmd *cobra.Command, words []string) error {
			o.Config, o.json = f.config, f.json
			return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr(), words)
		},
	}
	cli.RunFlags(cmd, &o.Source)
	cli.FilterFlags(cmd, &o.Source)
	return cmd
}

type suggestOptions struct {
	source.Source
	json bool
}

func (o *suggestOptions) run(stdout, stderr io.Writer, words []string) error {
	log, f, err := o.Ask(words)
	if err != nil {
		return err
	}
	defer log.Close()
	var learned logs.Learned
	if err := log.Decisions(f, learned.Add); err != nil {
		return err
	}
	all, floods := learned.All()
	if len(all)+len(floods) == 0 {
		return hint.Failed(fmt.Errorf("nothing was learned in %s", log.Dir), "egressd run --learn -- COMMAND, then egressd policy suggest --run last")
	}
	if learned.Beyond > 0 {
		fmt.Fprintf(stderr, "egressd: warning: %s more, to destinations that are too many, not one host, or that no policy opens, are left out\n", quantity.Plural(int(learned.Beyond), "request"))
	}
	for _, c := range floods {
		fmt.Fprintf(stderr, "egressd: warning: %s\n", c.Text())
	}
	presets, err := presetsOf(all)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(stdout)
	if o.json {
		for _, one := range all {
			if err := cli.PrintJSON(out, viewOfLearned(one, presets[one])); err != nil {
				return err
			}
		}
		return out.Flush()
	}
	return errors.Join(writeLearned(out, all, floods, presets), out.Flush())
}

// A learnedView is what suggest tells a script.
type learnedView struct {
	Allow    string   `json:"allow"`
	Count    int64    `json:"count"`
	Reached  int64    `json:"reached"`
	Up       int64    `json:"up"`
	Down     int64    `json:"down"`
	Programs []string `json:"programs,omitempty"`
	Preset   string   `json:"preset,omitempty"` // that allows it, too
	Warning  string   `json:"warning,omitempty"`
	Flow     string   `json:"flow"`
}

func viewOfLearned(l *logs.LearnedDestination, preset string) learnedView {
	warnings := l.Warnings()
	if text := telemetry(l); text != "" {
		warnings = append(warnings, text)
	}
	return learnedView{
		Allow: l.Pattern.String(), Count: l.Count, Reached: l.Reached, Up: l.Up, Down: l.Down, Programs: l.Programs, Preset: preset,
		Warning: strings.Join(warnings, "; "), Flow: l.Flow,
	}
}

// writeLearned writes part of a policy file. A host that was never reached, or that was sent a canary, becomes a comment.
func writeLearned(w io.Writer, all []*logs.LearnedDestination, floods []*logs.NameFlood, presets map[*logs.LearnedDestination]string) error {
	var rules, tests strings.Builder
	for _, c := range floods {
		fmt.Fprintf(&rules, "  # careful: %s\n", printable.Text(c.Text()))
	}
	for _, l := range all {
		view, mark := viewOfLearned(l, presets[l]), "  "
		note := fmt.Sprintf("%s, %s up, %s down", quantity.Plural(int(l.Count), "request"), quantity.Bytes(l.Up), quantity.Bytes(l.Down))
		if len(l.Programs) > 0 {
			note += ", by " + printable.Text(strings.Join(l.Programs, ", "))
		}
		if l.Reached == 0 {
			mark, note = "  # ", note+"; never reached"
		}
		if l.Alarm {
			mark = "  # "
		}
		if view.Warning != "" {
			fmt.Fprintf(&rules, "  # careful: %s\n", printable.Text(view.Warning))
		}
		fmt.Fprintf(&rules, "%s- %s # %s\n", mark, yamlText(view.Allow), note)
		if mark == "  " {
			fmt.Fprintf(&tests, "  - %s\n", yamlText("allow "+view.Allow))
		}
	}
	text := "# Hosts used during --learn that no rule allows yet. Delete lines that you cannot explain.\n" + presetLines(all, presets) + "allow:\n" + rules.String()
	if tests.Len() > 0 {
		text += "tests:\n" + tests.String()
	}
	_, err := io.WriteString(w, text)
	return err
}

// plainYAML is text that YAML takes for a string without quotes; 1.e5 is a number.
var plainYAML = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(allow )?[a-z][a-z0-9-]*(\.[a-z0-9-]+)*\.[a-z][a-z0-9-]*(:[0-9]+)?$`)
})

func yamlText(s string) string {
	if plainYAML().MatchString(s) {
		return s
	}
	return `"` + s + `"`
}
