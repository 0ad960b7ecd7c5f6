package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/logcmd"
	"github.com/egressd/egressd/cmd/egressd/internal/logs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/records"
	"github.com/spf13/cobra"
)

func newAllowCommand() *cobra.Command {
	var o allowOptions
	cmd := &cobra.Command{
		Use:   "allow HOST[:PORT]…",
		Short: "Let sandboxes reach one more host",
		Long: `Allow adds hosts to the list allow of the policy file, each as a line behind the
others, and shows the change on standard error. Everything else in the file
stays as it is. What comes out is compiled first, with the tests that are in it;
where a rule still refuses what was to be allowed, that is said, and a line that
would change nothing is not written.

HOST means ports 80 and 443, HOST:PORT one port, *.HOST every host below it, as
in the file. What only unsafe_allow opens is refused, and so is whatever is
wider than the domain of one registrant.

With --from, HOST has to be what the request of that id asked for, and that
request must have been refused because no rule speaks of its destination: not
by a rule, and not for a private or metadata address.

Only --save is built: temporary grants are not in this version.`,
		Example: `  egressd allow pkgs.corp.example --from 01KB6ZQ4 --save
  egressd allow '*.example.com' example.org:8443 --save`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr(), args)
		},
	}
	logs.AddFlags(cmd, &o.Source)
	cli.JsonFlag(cmd, &o.json)
	cmd.Flags().StringVar(&o.from, "from", "", "the `ID` of the refusal that this answers")
	cmd.Flags().BoolVar(&o.save, "save", false, "write the hosts into the policy file")
	_ = cmd.RegisterFlagCompletionFunc("from", func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		return o.CompleteIDs(cmd, nil, word)
	})
	return cmd
}

type allowOptions struct {
	logs.Source
	from       string
	save, json bool
}

func (o *allowOptions) run(stdout, stderr io.Writer, args []string) error {
	patterns, err := parseGrants(args)
	if err != nil {
		return err
	}
	g, err := newGrant(o.Config)
	if err != nil {
		return err
	}
	if o.from != "" {
		if err := o.answer(g, patterns); err != nil {
			return err
		}
	}
	if err := g.add(patterns); err != nil {
		return err
	}
	if len(g.added) > 0 && !o.save {
		return cli.Failed(errors.New("temporary grants are not in this version"), o.saving(patterns))
	}
	return o.finish(g, stdout, stderr)
}

// parseGrants reads the arguments, and refuses what no command may add.
func parseGrants(args []string) ([]policy.Pattern, error) {
	if len(args) == 0 {
		return nil, cli.Misused(errors.New("there is nothing to allow"), "egressd allow example.com --save")
	}
	var patterns []policy.Pattern
	for _, arg := range args {
		p, err := policy.ParsePattern(arg)
		var wrong *policy.PatternError
		if errors.As(err, &wrong) && wrong.Hint != "" && !strings.ContainsAny(wrong.Hint, "*/") {
			return nil, cli.Misused(err, "egressd allow "+cli.PatternWord(wrong.Hint)+" --save")
		}
		if err != nil {
			return nil, cli.Misused(err, "egressd allow example.com --save, or example.com:8443")
		}
		if err := policy.CheckGrant(p); err != nil {
			return nil, cli.Failed(err, "egressd log verdict:deny, for the hosts that are needed")
		}
		if !slices.Contains(patterns, p) {
			patterns = append(patterns, p)
		}
	}
	return patterns, nil
}

// saving is the command line that does what this one asks for, for good.
func (o *allowOptions) saving(patterns []policy.Pattern) string {
	line := "egressd allow"
	for _, p := range patterns {
		line += " " + cli.PatternWord(p.String())
	}
	if o.from != "" {
		line += " --from " + cli.ShellWord(o.from)
	}
	return line + " --save" + o.Flags()
}

// answer has the grant be for the sandbox that was refused, and refuses it
// where it does not answer that refusal.
func (o *allowOptions) answer(g *grant, patterns []policy.Pattern) error {
	source := o.Source
	if source.Dir == "" {
		dir, err := g.config.AuditDir()
		if err != nil {
			return err
		}
		source.Dir = dir
	}
	log, err := source.Open()
	if err != nil {
		return err
	}
	defer log.Close()
	s, err := logcmd.FindStory(log, strings.ToUpper(o.from))
	if err != nil {
		return err
	}
	for _, p := range patterns {
		if err := answeredBy(s, p); err != nil {
			return cli.Failed(err, "egressd why "+s.Flow+o.Flags())
		}
	}
	if len(g.config.File.Sandboxes) > 1 {
		g.warn("the line is for every sandbox of %s, not for %s alone", g.path, s.Record().Sandbox)
	}
	if slices.Contains(g.sandboxes, s.Record().Sandbox) { // one that is no longer listed asks as nobody
		g.sandboxes = []string{s.Record().Sandbox}
	}
	return nil
}

// answeredBy says why allowing p does not answer the story, or nil: it has to
// be just what was refused.
func answeredBy(s *logcmd.Story, p policy.Pattern) error {
	if s.Record() == nil || s.Decision.Action == "allow" {
		return fmt.Errorf("%s was not refused", s.Flow)
	}
	host := records.RefusedHost(s.Record())
	if host == "" {
		return fmt.Errorf("%s was refused for another reason than that no rule speaks of its destination: %s", s.Flow, records.Why(s.Record()))
	}
	for _, text := range []string{host, records.Destination(s.Record())} {
		if exact, err := policy.ParsePattern(text); err == nil && exact == p {
			return nil
		}
	}
	return fmt.Errorf("%s was about %s, and %s is something else", s.Flow, records.Destination(s.Record()), p)
}

// A saved is what allow tells a script.
type saved struct {
	Path     string   `json:"path"`
	Saved    bool     `json:"saved"`
	Added    []string `json:"added"`
	Already  []string `json:"already_allowed"`
	Warnings []string `json:"warnings,omitempty"`
	Policy   string   `json:"policy"` // digest of what the file says now
}

// finish writes what was judged, and says so.
func (o *allowOptions) finish(g *grant, stdout, stderr io.Writer) error {
	digest := g.before.Digest()
	for _, p := range g.already {
		fmt.Fprintf(stderr, "egressd: %s is allowed already\n", p)
	}
	for _, w := range g.warnings {
		fmt.Fprintf(stderr, "egressd: warning: %s\n", cli.Printable(w))
	}
	if len(g.added) > 0 {
		if err := g.write(stderr); err != nil {
			return err
		}
		digest = g.after.Digest()
	}
	if !o.json {
		return nil
	}
	return cli.PrintJSON(stdout, saved{
		Path: g.path, Saved: len(g.added) > 0, Added: patternTexts(g.added), Already: patternTexts(g.already),
		Warnings: g.warnings, Policy: digest,
	})
}

func patternTexts(patterns []policy.Pattern) []string {
	texts := make([]string, len(patterns))
	for i, p := range patterns {
		texts[i] = p.String()
	}
	return texts
}
