package answers

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/edit"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/logs/story"
	"github.com/egressd/egressd/policy"
	"github.com/spf13/cobra"
)

// usualTime is for how long a host is granted where nobody says.
const usualTime = time.Hour

func newAllow() *cobra.Command {
	o := options{verdict: "allow"}
	cmd := &cobra.Command{
		Use:   "allow HOST[:PORT]…",
		Short: "Let sandboxes reach one more host",
		Long: `Allow lets sandboxes reach more hosts: for a while, or with --save for good.

For a while, egressd serve is asked at listen.admin. It puts the policy in force
as if the hosts stood in the list allow of the file, and answers once it has.
When the time is over, or the grant is taken back with egressd grants revoke,
what is open only because of it is cut. Grants are not kept: they end with
egressd serve. A reload leaves those that the new policy has room for.

With --save, each is written into the file as a line behind the others, which
needs no daemon. Everything else in the file stays as it is, and the change is
shown on standard error.

What comes out is compiled first, with the tests that are in the file. Where a
rule still refuses what was to be allowed, that is said, and what would change
nothing is not done.

HOST means ports 80 and 443, HOST:PORT one port, *.HOST every host below it, as
in the file. What only unsafe_allow opens is refused, and so is whatever is
wider than the domain of one registrant.

With --from, HOST has to be what the request of that id asked for, and that
request must have been refused because no rule speaks of its destination: not
by a rule, and not for a private or metadata address. Then it is for the sandbox
of that request alone, as with --sandbox; a saved line is for all.`,
		Example: `  egressd allow pkgs.corp.example --from 01KB6ZQ4
  egressd allow '*.example.com' example.org:8443 --for 20m --sandbox ci
  egressd allow pkgs.corp.example --from 01KB6ZQ4 --save`,
	}
	o.addFlags(cmd, "allow")
	cmd.Flags().StringVar(&o.from, "from", "", "the `ID` of the refusal that this answers")
	_ = cmd.RegisterFlagCompletionFunc("from", func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		return cli.CompleteIDs(&o.Source)(cmd, nil, word)
	})
	return cmd
}

type options struct {
	source.Source
	verdict       string
	from, sandbox string
	lasts         time.Duration
	save, json    bool
}

func (o *options) addFlags(cmd *cobra.Command, what string) {
	cli.LogFlags(cmd, &o.Source)
	cli.JsonFlag(cmd, &o.json)
	cmd.Flags().DurationVar(&o.lasts, "for", usualTime, "how long, at most 24h")
	cmd.Flags().StringVar(&o.sandbox, "sandbox", "", "`NAME` of the sandbox that it is for (default: all of them)")
	cmd.Flags().BoolVar(&o.save, "save", false, "write the hosts into the list "+what+" of the policy file")
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	_ = cmd.RegisterFlagCompletionFunc("sandbox", cli.CompleteSandboxes(&o.Config))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.contradiction(cmd.Flags().Changed("for")); err != nil {
			return err
		}
		return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args)
	}
}

// contradiction says which flags do not go together.
func (o *options) contradiction(timed bool) error {
	switch {
	case o.save && timed:
		return hint.Misused(errors.New("--save is for good, and --for is not"), "one of them alone")
	case o.save && o.sandbox != "":
		return hint.Misused(errors.New("a line in the list "+o.verdict+" of the file is for every sandbox"), "--save alone; or write it under "+o.verdict+" of sandbox "+shell.Word(o.sandbox)+" by hand")
	}
	return nil
}

func (o *options) run(ctx context.Context, stdout, stderr io.Writer, args []string) error {
	patterns, err := edit.Patterns(args, o.verdict, o.line)
	if err != nil {
		return err
	}
	if !o.save {
		return o.ask(ctx, stdout, stderr, patterns)
	}
	a, err := edit.New(o.Config, o.verdict)
	if err != nil {
		return err
	}
	if o.from != "" {
		who, err := o.answered(a.Config, patterns)
		if err != nil {
			return err
		}
		a.Answers(who.Decisive.Sandbox)
	}
	if err := a.Add(patterns); err != nil {
		return err
	}
	return o.finish(a, stdout, stderr)
}

// line is the command for other hosts.
func (o *options) line(hosts string) string {
	line := "egressd " + o.verdict + " " + hosts
	if o.save {
		line += " --save"
	}
	return line
}

// saving is the command line that does what this one asks for, for good.
func (o *options) saving(patterns []policy.Pattern) string {
	line := "egressd " + o.verdict
	for _, p := range patterns {
		line += " " + shell.Pattern(p.String())
	}
	if o.from != "" {
		line += " --from " + shell.Word(o.from)
	}
	return line + " --save" + o.Flags()
}

// answered finds the refusal that a grant answers, and refuses the grant where it does not.
func (o *options) answered(c *config.Config, patterns []policy.Pattern) (*story.Story, error) {
	source := o.Source
	if source.Dir == "" && source.Run == "" {
		dir, err := c.AuditDir()
		if err != nil {
			return nil, err
		}
		source.Dir = dir
	}
	log, err := source.Open()
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s, err := story.Find(log, strings.ToUpper(o.from))
	if err != nil {
		return nil, err
	}
	for _, p := range patterns {
		if err := s.AnsweredBy(p); err != nil {
			return nil, hint.Failed(err, "egressd why "+s.Flow+o.Flags())
		}
	}
	return s, nil
}

func patternTexts(patterns []policy.Pattern) []string {
	texts := make([]string, len(patterns))
	for i, p := range patterns {
		texts[i] = p.String()
	}
	return texts
}
