package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/explain"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/policy"
	"github.com/spf13/cobra"
)

func newDiff(f *policyFlags) *cobra.Command {
	o := diffOptions{policyOptions: policyOptions{}}
	cmd := &cobra.Command{
		Use:   "diff [--within FILE] [OLD] NEW",
		Short: "Show which requests another policy decides differently",
		Long: `Diff shows what NEW opens and closes beside OLD: each set of hosts, ports, methods and
paths that the two decide differently, with an example that both have decided. Without
OLD, NEW is compared with the policy file. Each is a YAML file, or a folder with an
egressd.yaml. Nothing is sent or resolved.

A change is one of opens, asks (a person is asked), loosens (more may pass inside, or
requests are no longer looked at), credential, tightens and closes. "leads to" means
names that resolve to that address, or are aliases of that name.

For rule files the answer is complete. If Rego decides as well, the examples are true,
but there may be more; egressd policy replay asks the log.

--within FILE marks what NEW opens beside OLD and FILE does not allow, and only that
fails.

--ci writes the report of a pull request as Markdown, for the summary of a job: what
policy check finds in NEW, the tests of NEW, and the differences. With --ci=DIR, also the
requests of the audit log in DIR that NEW decides otherwise than OLD. Then a difference
alone does not fail.

Exit codes: 0 no difference, or all that NEW opens is within FILE; 1 there is a
difference, or NEW opens more than FILE allows; 2 it cannot tell. With --ci: 0 nothing
is wrong with NEW, and all that it opens is within FILE; 1 a check, a test or FILE
fails; 2 something could not be told.`,
		Example: `  egressd policy diff new.yaml
  egressd policy diff main/egressd.yaml branch/egressd.yaml --json
  egressd policy diff old.yaml new.yaml --within /etc/egressd/boundary.yaml
  egressd policy diff --ci=sample-log main . >> "$GITHUB_STEP_SUMMARY"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.config, o.json = f.config, f.json
			err := o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args)
			var answer cli.Status
			if err == nil || errors.As(err, &answer) {
				return err
			}
			return hint.Unsure(err)
		},
	}
	cmd.Flags().StringVar(&o.sample, "ci", "", "write a report of the checks, tests and differences of NEW as Markdown, also for the log in `DIR`")
	cmd.Flags().Lookup("ci").NoOptDefVal = noSample
	cmd.Flags().StringVar(&o.within, "within", "", "fail only if NEW opens what this `FILE` does not allow")
	return cmd
}

type diffOptions struct {
	policyOptions
	within string
	sample string // of --ci: the folder of a log, or noSample; "" without --ci
}

func (o *diffOptions) run(ctx context.Context, stdout, stderr io.Writer, args []string) error {
	switch len(args) {
	case 1:
		args = []string{o.config, args[0]}
	case 2:
		if o.config != "" {
			return hint.Misused(errors.New("--config and OLD name the same policy"), "egressd policy diff OLD NEW")
		}
	default:
		return hint.Misused(errors.New("there is no policy to compare with"), "egressd policy diff NEW, or egressd policy diff OLD NEW")
	}
	if o.sample != "" {
		return o.review(ctx, stdout, stderr, args[0], args[1])
	}
	old, err := loadSide(args[0])
	if err != nil {
		return err
	}
	next, err := loadSide(args[1])
	if err != nil {
		return err
	}
	var within *config.Config
	if o.within != "" {
		if within, err = loadSide(o.within); err != nil {
			return err
		}
	}
	all, unsure, err := explain.Compare(ctx, old, next, within)
	if err != nil {
		return err
	}
	if err := printDifferences(stdout, all, o.json); err != nil {
		return err
	}
	return o.conclude(stderr, old, next, all, unsure)
}

// loadSide reads a policy file, or that of a folder. An empty path means the policy file in force.
func loadSide(path string) (*config.Config, error) {
	if found, ok := policyAt(path); ok && path != "" {
		path = found
	}
	return config.Load(path)
}

// conclude sums up on stderr, and returns the exit code.
func (o *diffOptions) conclude(stderr io.Writer, old, next *config.Config, all []explain.PolicyDifference, unsure []string) error {
	for _, why := range unsure {
		fmt.Fprintf(stderr, "egressd: warning: there may be more differences: %s\n", printable.Text(why))
	}
	counts, order := map[policy.Change]int{}, []string{}
	beyond := 0
	for _, d := range all {
		if counts[d.Change]++; counts[d.Change] == 1 {
			order = append(order, string(d.Change))
		}
		if d.Beyond {
			beyond++
		}
	}
	for i, change := range order {
		order[i] = fmt.Sprintf("%s %d", change, counts[policy.Change(change)])
	}
	what := strings.Join(order, ", ")
	if len(all) == 0 {
		what = "no request is decided differently"
	}
	if o.within != "" && beyond > 0 {
		what += fmt.Sprintf("; %d beyond %s", beyond, o.within)
	} else if o.within != "" {
		what += "; nothing beyond " + o.within
	}
	fmt.Fprintf(stderr, "egressd: from %s to %s: %s\n", printable.Text(old.Path), printable.Text(next.Path), printable.Text(what))
	switch {
	case beyond > 0, o.within == "" && len(all) > 0:
		return cli.Status(cli.ExitFailed)
	case len(unsure) > 0:
		return cli.Status(cli.ExitUnsure)
	}
	return nil
}

func printDifferences(w io.Writer, all []explain.PolicyDifference, asJSON bool) error {
	if asJSON {
		return cli.PrintEach(w, all)
	}
	if len(all) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "CHANGE\tHOSTS\tEXAMPLE\tSANDBOX\tWAS\tNOW")
	for i := range all {
		d := &all[i]
		change, example := string(d.Change), d.Example
		if d.Beyond {
			change += " beyond"
		}
		if d.Leads != "" {
			example += ", which leads to " + d.Leads
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", cli.Cell(change), cli.Cell(d.Hosts), cli.Cell(example), cli.Cell(d.Sandbox),
			cli.Cell(sideText(&d.Was)), cli.Cell(sideText(&d.Now)))
	}
	return table.Flush()
}

func sideText(s *explain.Side) string {
	text := s.Verdict + " by " + s.Rule
	if s.MaxBytesUp > 0 {
		text += ", at most " + quantity.Bytes(s.MaxBytesUp)
	}
	return text
}
