package answers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/edit"
	"github.com/egressd/egressd/daemon/client"
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
		Use:   "allow HOST[:PORT]…|--list|--undo ID",
		Short: "Allow a host, for a while or for good",
		Long: `Allow adds a rule that allows HOST: for a while, or with --save for good.

A temporary rule goes to the running egressd serve, and opens what no line of
the file speaks of. With --over-deny, it also opens what a line denies or asks
about, unless that line names the host more closely. It ends after --for, with
--undo, or when egressd serve stops. Connections that only it allowed are cut then.
--list shows the temporary rules of allow and deny, and --undo takes any of them back;
for those that ended, see egressd log kind:admin.

With --save, allow adds a line to the policy file and shows the change. It needs
no daemon. Without a file it writes one with that line alone. The rest of a file
stays as it is, comments too. The tests in the file must pass. If another rule still
denies HOST, allow names it and writes nothing.

HOST is ports 80 and 443, HOST:PORT one port, *.HOST every host below it. Allow
refuses whatever needs unsafe_allow, and patterns that cover the domains of
several owners, such as *.com.

With --from, HOST must be the destination of that denied request, and no rule may
have denied it on purpose. Allow opens exactly that request: its port, and its
method and path if egressd could read them. The temporary rule is for that
sandbox alone. With --save, --from and --sandbox open nothing to another sandbox of
the file: the line goes to the sandbox's own list allow, or to its also_allow if the
list of the file does not have HOST.`,
		Example: `  egressd allow pkgs.corp.example --from 01KB6ZQ4
  egressd allow '*.example.com' example.org:8443 --for 20m --sandbox ci
  egressd allow --list
  egressd allow --undo GK3Q7XA
  egressd allow uploads.example.org --for 10m --over-deny
  egressd allow pkgs.corp.example --from 01KB6ZQ4 --save
  egressd allow pkgs.corp.example:80 --method GET --path '/v1/**' --save`,
	}
	o.addFlags(cmd, "allow")
	cli.RunFlags(cmd, &o.Source)
	cmd.Flags().StringVar(&o.from, "from", "", "`ID` of the denied request that this answers")
	cmd.Flags().BoolVar(&o.overDeny, "over-deny", false, "allow it for a while even if a rule of the file denies it or asks about it")
	cmd.Flags().StringVar(&o.method, "method", "", "allow only requests of this `METHOD`; GET includes HEAD")
	cmd.Flags().StringVar(&o.path, "path", "", "allow only requests of this `PATH`, as in paths of a rule")
	_ = cmd.RegisterFlagCompletionFunc("from", func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		return cli.CompleteIDs(&o.Source)(cmd, nil, word)
	})
	return cmd
}

type options struct {
	source.Source
	verdict       string
	from, sandbox string
	method, path  string // of an allow: "" for all
	lasts         time.Duration
	save, json    bool
	overDeny      bool // of an allow
	print         bool

	admin  string   // address of the operator's listener, or ""
	listed bool     // list the temporary rules instead
	undone []string // ids of temporary rules to take back instead, or allOfThem
}

// dial finds the running egressd serve.
func (o *options) dial() (*client.Client, error) {
	return client.Dial(client.Place{Config: o.Config, Admin: o.admin})
}

func (o *options) addFlags(cmd *cobra.Command, what string) {
	cli.ConfigFlag(cmd, &o.Config)
	cli.JSONFlag(cmd, &o.json)
	cli.DurationFlag(cmd, &o.lasts, "for", usualTime, "how long the rule lasts, at most 24h")
	cmd.Flags().StringVar(&o.sandbox, "sandbox", "", "`NAME` of the sandbox to change (default: all)")
	cmd.Flags().BoolVar(&o.save, "save", false, "write the hosts into the list "+what+" of the policy file")
	cmd.Flags().BoolVar(&o.print, "print", false, "with --save, print the new policy file instead of writing it")
	cmd.Flags().StringVar(&o.admin, "admin", "", cli.AdminUsage)
	cmd.Flags().BoolVar(&o.listed, "list", false, "list the temporary rules, those that allow and those that deny")
	cmd.Flags().StringSliceVar(&o.undone, "undo", nil, "take back the temporary rule `ID`, or all")
	for _, flag := range []string{"save", "for", "sandbox"} {
		cmd.MarkFlagsMutuallyExclusive(flag, "list", "undo")
	}
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	_ = cmd.RegisterFlagCompletionFunc("undo", func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		return o.completeGrants(cmd.Context(), o.undone, word), cobra.ShellCompDirectiveNoFileComp
	})
	_ = cmd.RegisterFlagCompletionFunc("sandbox", cli.CompleteSandboxes(&o.Config))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.contradiction(cmd.Flags().Changed("for")); err != nil {
			return err
		}
		switch {
		case o.listed && len(args) > 0:
			return hint.Misused(fmt.Errorf("--list takes no host, and was given %q", args[0]), "egressd allow --list")
		case o.listed:
			return o.list(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		case len(o.undone) > 0:
			return o.undo(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), append(o.undone, args...))
		}
		return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args)
	}
}

// contradiction says which flags do not go together.
func (o *options) contradiction(timed bool) error {
	switch {
	case o.save && o.overDeny:
		return hint.Misused(errors.New("--over-deny is for a while; in the file, the rule that denies is what to change"), "--save alone, which names that rule")
	case o.save && timed:
		return hint.Misused(errors.New("--save is for good, and --for is not"), "one of them alone")
	case o.print && (!o.save || o.json):
		return hint.Misused(errors.New("--print prints what --save would write"), "--save --print, without --json")
	case o.from != "" && (o.method != "" || o.path != ""):
		return hint.Misused(errors.New("--from takes method and path from the denied request"), "--from alone; or --method and --path without it")
	case o.save && o.sandbox != "" && o.verdict == "deny":
		return o.everySandbox()
	}
	return nil
}

func (o *options) everySandbox() error {
	return hint.Misused(errors.New("a line in the list "+o.verdict+" of the file is for every sandbox"), "--save alone; or write it under "+o.verdict+" of sandbox "+shell.Word(o.sandbox)+" by hand")
}

func (o *options) run(ctx context.Context, stdout, stderr io.Writer, args []string) error {
	patterns, err := edit.Patterns(args, o.verdict, o.line)
	if err != nil {
		return err
	}
	var lines []policy.Opening
	for _, p := range patterns {
		line := policy.Opening{Pattern: p, Method: o.method, Path: o.path}
		if err := line.Check(); err != nil && o.verdict == "allow" {
			return hint.Misused(err, o.line(shell.Pattern(p.String()))+" --method GET --path '/v1/**'")
		}
		lines = append(lines, line)
	}
	if !o.save {
		return o.ask(ctx, stdout, stderr, lines)
	}
	if o.from != "" && o.Config == "" && o.Dir == "" {
		o.Config = o.policyOfRun()
	}
	a, err := edit.New(o.Config, o.verdict)
	if err != nil {
		return err
	}
	if o.sandbox != "" {
		if a.Config.EntryFor(o.sandbox) == nil {
			return o.everySandbox()
		}
		a.For(o.sandbox)
	}
	if o.from != "" {
		who, exact, err := o.answered(a.Config, lines)
		if err != nil {
			return err
		}
		a.For(cmp.Or(o.sandbox, who.Decisive.Sandbox))
		lines = []policy.Opening{exact}
	}
	if err := a.Add(lines); err != nil {
		return err
	}
	return o.finish(a, stdout, stderr)
}

// line is the command for other hosts.
func (o *options) line(hosts string) string {
	line := shell.Program() + " " + o.verdict + " " + hosts
	if o.save {
		line += " --save"
	}
	return line
}

// saving is the command line that does what this one asks for, for good.
func (o *options) saving(lines []policy.Opening) string {
	line := shell.Program() + " " + o.verdict
	for _, l := range lines {
		line += " " + shell.Pattern(l.Pattern.String())
	}
	for _, flag := range []struct{ name, value string }{{"from", o.from}, {"method", o.method}, {"path", o.path}} {
		if flag.value != "" {
			line += " --" + flag.name + " " + shell.Word(flag.value)
		}
	}
	return line + " --save" + o.Flags()
}

// policyOfRun returns the policy file that --config of the run named in which the request was denied, or "" for the usual one.
// A fix opens nothing in another file than that of the denial, wherever the fix was printed.
func (o *options) policyOfRun() string {
	in := o.Source
	if in.Run == source.AllRuns {
		in.Run = ""
	}
	_, log, err := story.FindAnywhere(&in, strings.ToUpper(o.from))
	if err != nil {
		return "" // answered says so
	}
	log.Close()
	return in.PolicyFile()
}

// answered finds the refusal that a grant answers, and what exactly was refused. It refuses a grant that is about
// something else.
func (o *options) answered(c *config.Config, lines []policy.Opening) (s *story.Story, exact policy.Opening, err error) {
	if o.Daemon, err = c.AuditDir(); err != nil {
		return nil, exact, err
	}
	s, log, err := story.FindAnywhere(&o.Source, strings.ToUpper(o.from))
	if err != nil {
		return nil, exact, err
	}
	defer log.Close()
	var wanted []policy.Pattern
	for _, l := range lines {
		wanted = append(wanted, l.Pattern)
	}
	exact, err = s.Allowing(wanted, o.Flags(), c.Path)
	return s, exact, err
}

func textsOf(lines []policy.Opening) []string {
	texts := make([]string, len(lines))
	for i, l := range lines {
		texts[i] = l.String()
	}
	return texts
}
