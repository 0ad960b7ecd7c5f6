package log

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/logs/story"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/record"
	"github.com/spf13/cobra"
)

func newWhy() *cobra.Command {
	flags := &logFlags{}
	cmd := explainCommand("why", flags)
	cmd.Example = `  egressd why 01KB6ZQ4SZ
  egressd why 01KB6ZQ4 --json`
	flags.add(cmd)
	return cmd
}

func newShow(flags *logFlags) *cobra.Command {
	cmd := explainCommand("show", flags)
	cmd.Example = `  egressd log show 01KB6ZQ4SZ`
	cmd.PreRun = func(cmd *cobra.Command, _ []string) { flags.Talk = cmd.ErrOrStderr() }
	return cmd
}

// explainCommand returns egressd why and egressd log show, which are one command.
func explainCommand(word string, flags *logFlags) *cobra.Command {
	o := whyOptions{flags}
	return &cobra.Command{
		Use:   word + " ID",
		Short: "Explain one request, and what would have allowed it",
		Long: `Why and log show are one command. It explains one request by its id, which the denied
program was shown and egressd log prints. The beginning of an id is enough if it is
unique; seq:20014 is the request that record 20014 belongs to. It tells what was asked, by which program, what decided, what egressd dialled,
how much passed and how it ended. It also lists other tries of the same program within
a minute before and after: the same host on another port, an address instead of a name,
another name or way in.

It shows a command that allows the request only for a public destination that no
rule mentions: never for private addresses, cloud metadata, or a request that a
rule denied on purpose.`,
		Args:              cli.OneArgument("an id", "egressd log verdict:deny   (the ids are in its last column)"),
		ValidArgsFunction: cli.CompleteIDs(&o.Source),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.Refuse(cmd, "since", "until"); err != nil {
				return err
			}
			return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0])
		},
	}
}

type whyOptions struct{ *logFlags }

func (o *whyOptions) run(stdout, stderr io.Writer, id string) error {
	if id == "" {
		return hint.Misused(errors.New("an empty id"), "egressd log verdict:deny   (the ids are in its last column)")
	}
	if number, is := strings.CutPrefix(id, "seq:"); is {
		var err error
		if id, err = o.flowOf(number); err != nil {
			return err
		}
	}
	found, log, err := story.FindAnywhere(&o.Source, strings.ToUpper(id))
	if err != nil {
		return err
	}
	defer log.Close()
	defer o.checkUnchanged(log, stderr)()
	if found.Fix != "" {
		found.Fix += o.AllowFlags()
	}
	if err := found.Link(log); err != nil {
		return err
	}
	if o.json {
		return cli.PrintJSON(stdout, found)
	}
	return storyView{found, o.Run, o.Flags()}.print(stdout, o.PolicyPath(), cli.PaletteFor(stdout))
}

// flowOf returns the id of the request that a record belongs to.
func (o *whyOptions) flowOf(number string) (string, error) {
	seq, err := strconv.ParseInt(number, 10, 64)
	if err != nil || seq < 0 {
		return "", hint.Misused(fmt.Errorf("%q is not the number of a record", number), "egressd why seq:20014")
	}
	dir, err := o.Directory()
	if err != nil {
		return "", err
	}
	r, err := source.Record(dir, seq)
	if err == nil && r.Flow == "" {
		err = hint.Failed(fmt.Errorf("record %d is of no request: its kind is %s", seq, r.Kind), "egressd log --json seq:"+number+o.Flags())
	}
	if err != nil {
		return "", err
	}
	return r.Flow, nil
}

// A storyView prints a story for a person.
type storyView struct {
	*story.Story
	run   string // id of the run whose log it is; empty for the daemon's log
	flags string // with which another command reads the same log and policy
}

func (s storyView) print(w io.Writer, policyPath string, colours cli.Palette) error {
	r, d := s.Decisive, s.Decision
	if d == nil {
		r, d = s.Records[0], &record.Decision{Action: "unknown"}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s  %s  %s\n", colours.Mark(d.Action), colours.Bold(printable.Text(d.Action)), cli.Cell(logs.Destination(r)), printable.Text(s.Flow))
	cli.Field(&b, "run", s.run)
	cli.Field(&b, "asked", askedText(r))
	for i, text := range s.Git() {
		cli.Field(&b, map[bool]string{true: "git"}[i == 0], text)
	}
	cli.Field(&b, "when", s.Records[0].Time.Local().Format(time.DateTime))
	if s.Shared {
		cli.Field(&b, "shared", "by requests that were refused too fast for an id each; this was the first of them")
	}
	if s.Times > 1 {
		cli.Field(&b, "times", fmt.Sprintf("%d, %s", s.Times, s.alike()))
	}
	cli.Field(&b, "alarm", signalText(s.Signal))
	cli.Field(&b, "who", whoText(r))
	cli.Field(&b, "container", containerText(r.Container))
	cli.Field(&b, "server name", serverName(r))
	if r.Dst != nil {
		cli.Field(&b, "asked for", r.Dst.Asked)
		cli.Field(&b, "addresses", strings.Join(r.Dst.Addrs, " "))
		cli.Field(&b, "address is", r.Dst.Class)
		cli.Field(&b, "dialled", r.Dst.Addr)
	}
	cli.Field(&b, "rule", printable.Rule(d.Rule, d.Layer))
	cli.Field(&b, "class", d.Class)
	cli.Field(&b, "reason", d.Reason)
	cli.Field(&b, "allowed if", strings.Join(d.AllowedIf, ", or "))
	cli.Field(&b, "question", questionText(d, s.Answer, s.flags))
	cli.Field(&b, "policy", d.Policy)
	if s.Shadow != nil {
		cli.Field(&b, "shadow", cli.ShadowText(s.Shadow))
		cli.Field(&b, "", "the policy "+s.Shadow.Policy+" stands beside the one in force, and decides nothing")
	}
	cli.Field(&b, "sent", r.Raw)
	cli.Field(&b, "ended", s.endText())
	if s.End != nil {
		cli.Field(&b, "note", s.End.Note)
	} else if s.Decisive != nil {
		cli.Field(&b, "note", s.Decisive.Note)
	}
	s.printRecords(&b, colours)
	s.printLinked(&b, colours)
	s.printFix(&b, policyPath)
	_, err := io.WriteString(w, b.String())
	return err
}

// alike says what the refusals of a flow have in common.
func (s storyView) alike() string {
	for _, r := range s.Records {
		if r.Names != nil {
			return "with those of other names, since the sandbox was refused too often: " + namesText(r)
		}
	}
	return "all refused alike"
}

// printRecords lists the records where the decisive one is not the only one.
func (s storyView) printRecords(b *strings.Builder, colours cli.Palette) {
	if len(s.Records) < 2 {
		return
	}
	fmt.Fprintln(b, "  records")
	for _, r := range s.Records {
		fmt.Fprintf(b, "    %s\n", line(r, s.Records[0].Time, colours))
	}
	if s.LeftOut > 0 {
		fmt.Fprintf(b, "    and %d more: egressd log --json flow:%s\n", s.LeftOut, printable.Text(s.Flow))
	}
}

func (s storyView) printFix(b *strings.Builder, policyPath string) {
	if s.Fix == "" {
		cli.Field(b, "change", s.Change)
		return
	}
	cli.Field(b, "fix", s.Fix)
	what := "lets it pass for an hour, and with --save adds a line to "
	if strings.Contains(s.Fix, " --save") {
		what = "adds a line to "
	}
	cli.Field(b, "", what+policyPath+", if this is meant to pass")
	if d := s.Decisive.Dst; d != nil {
		cli.Field(b, "in presets", strings.Join(file.PresetsWith(d.Host, d.Port), ", "))
	}
}

// printLinked tells what the same program did around the story.
func (s storyView) printLinked(b *strings.Builder, colours cli.Palette) {
	by := "program"
	if s.Decisive != nil && logs.Process(s.Decisive) == "" {
		by = "sandbox"
	}
	for _, after := range []bool{false, true} {
		title := map[bool]string{false: "before", true: "after"}[after]
		for _, l := range s.Linked {
			if l.After != after {
				continue
			}
			if title != "" {
				fmt.Fprintf(b, "  %s, by the same %s\n", title, by)
				title = ""
			}
			count := ""
			if l.Count > 1 {
				count = fmt.Sprintf("%d × ", l.Count)
			}
			fmt.Fprintf(b, "    %s  %s  %s%s: %s  %s  %s  %s\n", quantity.Clock(l.Time, s.Records[0].Time), colours.Mark(l.Verdict), count, printable.Text(l.Relation),
				cli.CutHost(cli.Cell(l.Destination)), cli.Cut(cli.Cell(l.What), cli.LongestColumn), cli.Cut(cli.Cell(l.Why), cli.LongestCell), printable.Text(l.Flow))
		}
	}
	if s.Further > 0 {
		fmt.Fprintf(b, "    and %d more within a minute\n", s.Further)
	}
}

func askedText(r *record.Record) string {
	via := "by " + r.Via
	if r.HTTP != nil && r.HTTP.Method != "" {
		return r.HTTP.Method + " " + r.HTTP.Path + " " + via
	}
	if r.DNS != nil {
		return r.DNS.Type + " of " + r.DNS.Name + " " + via
	}
	return via
}

func whoText(r *record.Record) string {
	text := "sandbox " + r.Sandbox
	if r.Sandbox == "" {
		text = "nobody known"
	}
	if r.Src != "" {
		text += " from " + r.Src
	}
	if p := r.Process; p != nil && p.Exe != "" {
		text += fmt.Sprintf(" (%s, pid %d)", p.Exe, p.PID)
	}
	return text
}

func containerText(c *record.Container) string {
	if c == nil {
		return ""
	}
	text := cmp.Or(c.Name, c.ID)
	if c.Project != "" {
		text += ", service " + c.Service + " of the project " + c.Project
	}
	if c.Image != "" {
		text += ", of the image " + c.Image
	}
	return text
}

func serverName(r *record.Record) string {
	if r.TLS == nil {
		return ""
	}
	return r.TLS.SNI
}

func (s storyView) endText() string {
	switch {
	case s.End != nil:
		text := trafficText(s.End)
		if s.End.Outcome != "" {
			text += ": " + string(s.End.Outcome)
		}
		return text
	case s.Decision != nil && s.Decision.Action == "allow":
		return "not yet, as far as the log goes"
	default:
		return "nothing passed"
	}
}

// questionText says which questions to a person the decision stands on, or which has to be answered.
func questionText(d *record.Decision, answer *story.Answer, flags string) string {
	text := strings.Join(d.Question, " ")
	switch {
	case text != "" && d.Action == "allow":
		return text + ", approved; " + shell.Program() + " log kind:admin says by whom"
	case text != "" && answer != nil:
		what := "rejected"
		if answer.Approved {
			what = "approved"
		}
		return fmt.Sprintf("%s, %s at %s by record %d", text, what, answer.Time.Local().Format(time.DateTime), answer.Seq)
	case text != "" && d.Class != string(policy.AskRejected):
		return text + "; " + shell.Program() + " answer " + text + " yes" + flags
	}
	return text
}
