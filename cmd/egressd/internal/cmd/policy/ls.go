package policy

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/spf13/cobra"
)

func newList(f *policyFlags) *cobra.Command {
	var o listOptions
	cmd := &cobra.Command{
		Use:   "ls [PATH]",
		Short: "List all rules, and how often each decided",
		Long: `Ls lists every rule of the policy with its place and the number of requests in the
audit log that it decided: baseline, lines of the file, presets, Rego, default. PATH
is a YAML file, or a folder with an egressd.yaml, like --config.

A line without an id is known by its position, such as allow[3]. For those lines
only decisions under the current text count. A Rego rule whose name depends on
the request cannot be counted.`,
		Example: `  egressd policy ls
  egressd policy ls --unused --since 30d
  egressd policy ls --json --since 24h`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Config, o.json = f.config, f.json
			args, err := takePolicy(args, &o.Config)
			if err != nil {
				return err
			}
			if err := cli.NoArguments(cmd, args); err != nil {
				return err
			}
			return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cli.RunFlags(cmd, &o.Source)
	cmd.Flags().StringVar(&o.since, "since", "", "count decisions since this `TIME`: 24h, 30d, 09:30, 2026-11-20")
	cmd.Flags().BoolVar(&o.unused, "unused", false, "list only rules that decided nothing")
	return cmd
}

type listOptions struct {
	source.Source
	since        string
	unused, json bool
}

// A listedRule is a rule that can decide, and how often it did.
type listedRule struct {
	config.RuleInForce

	// Hits is how many decisions name the rule, and Last when that was last so. Hits
	// is absent where that cannot be told.
	Hits *int64     `json:"hits,omitempty"`
	Last *time.Time `json:"last,omitempty"`

	// Counted is "rule" where the decisions under any policy count, and "policy"
	// where those under this one alone do.
	Counted string `json:"counted,omitempty"`
}

func (o *listOptions) run(stdout, stderr io.Writer) error {
	now := time.Now()
	var since time.Time
	if o.since != "" {
		var err error
		if since, err = logs.ParseMoment(o.since, now); err != nil {
			return hint.Misused(fmt.Errorf("--since %s: %w", o.since, err), "egressd policy ls --since 24h")
		}
	}
	cfg, err := config.Load(o.Config)
	if err != nil {
		return err
	}
	p, err := cfg.Compile()
	if err != nil {
		return err
	}
	all, err := listedRules(cfg)
	if err != nil {
		return err
	}
	if err := o.count(all, p.Digest(), since, stderr); err != nil {
		return err
	}
	if o.unused {
		all = slices.DeleteFunc(all, func(r listedRule) bool { return r.Hits == nil || *r.Hits > 0 })
	}
	if !o.json {
		sayJudged(stderr, cfg, o.Config != "")
	}
	return printListed(stdout, all, o.json, now)
}

// listedRules returns the rules in the order in which they stand.
func listedRules(c *config.Config) ([]listedRule, error) {
	rules, err := c.RulesInForce()
	all := make([]listedRule, len(rules))
	for i := range rules {
		all[i].RuleInForce = rules[i]
	}
	return all, err
}

// A hitKey is what records and rules have in common.
type hitKey struct {
	rule    string
	layer   policy.Layer
	sandbox string // where the rule is of a list that several sandboxes may have
}

// count goes over the log once, and remembers no more than the rules.
func (o *listOptions) count(all []listedRule, digest string, since time.Time, stderr io.Writer) error {
	dir, err := o.Directory()
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && o.Dir == "" && !o.unused {
		fmt.Fprintf(stderr, "egressd: there is no log in %s, so no decisions were counted\n", printable.Text(dir))
		return nil
	}
	log, err := o.Open()
	if err != nil {
		return err
	}
	defer log.Close()
	rules := map[hitKey][]*listedRule{}
	for i := range all {
		r := &all[i]
		if r.Rule == "" {
			continue
		}
		r.Hits, r.Counted = new(int64), "rule"
		if r.Positional {
			r.Counted = "policy"
		}
		key := hitKey{r.Rule, r.Layer, ""}
		if r.Rule == "default" {
			key.sandbox = r.Sandbox
		}
		rules[key] = append(rules[key], r)
	}
	return log.Decisions(new(logs.Filter), func(r *record.Record) {
		if logs.Decides(r) && !r.Time.Before(since) {
			hit(rules[hitKeyOf(r)], r, r.Decision.Policy == digest)
		}
	})
}

func hitKeyOf(r *record.Record) hitKey {
	key := hitKey{policy.FileOfRule(r.Decision.Rule), policy.Layer(r.Decision.Layer), ""}
	if key.rule == "default" && key.layer == policy.PerSandbox {
		key.sandbox = r.Sandbox
	}
	return key
}

func hit(rules []*listedRule, of *record.Record, current bool) {
	at := of.Time
	for _, r := range rules {
		if r.Counted == "policy" && !current {
			continue
		}
		*r.Hits += of.Times()
		if r.Last == nil || r.Last.Before(at) {
			r.Last = &at
		}
	}
}

func printListed(w io.Writer, all []listedRule, asJSON bool, now time.Time) error {
	out := bufio.NewWriter(w)
	if asJSON {
		return errors.Join(cli.PrintEach(out, all), out.Flush())
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "HITS\tLAST\tEFFECT\tLAYER\tRULE\tWHERE\tWHAT")
	for i := range all {
		r := &all[i]
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.hitsText(), r.lastText(now), r.Effect, cli.Cell(r.layerText()), cli.Cell(r.Rule), cli.Cell(r.where()), brief(cli.Cell(r.What)))
	}
	return errors.Join(table.Flush(), out.Flush())
}

func (r *listedRule) hitsText() string {
	if r.Hits == nil {
		return "?"
	}
	return fmt.Sprint(*r.Hits)
}

func (r *listedRule) lastText(now time.Time) string {
	if r.Last == nil {
		return "–"
	}
	return quantity.Clock(*r.Last, now)
}

func (r *listedRule) layerText() string {
	return strings.TrimSuffix(cmp.Or(string(r.Layer), "?")+"/"+r.Sandbox, "/")
}

func (r *listedRule) where() string {
	if r.File == "" {
		return ""
	}
	return fmt.Sprintf("%s:%d", r.File, r.Line)
}

// brief cuts text for a table.
func brief(s string) string {
	const most = 100
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return s
}
