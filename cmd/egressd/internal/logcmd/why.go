package logcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/logsource"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
	"github.com/spf13/cobra"
)

// NewWhy returns egressd why.
func NewWhy() *cobra.Command {
	cmd := explainCommand(&whyOptions{})
	cmd.Use = "why ID"
	cmd.Example = `  egressd why 01KB6ZQ4SZ
  egressd why 01KB6ZQ4 --json`
	return cmd
}

func newLogShowCommand() *cobra.Command {
	cmd := explainCommand(&whyOptions{around: true})
	cmd.Use = "show ID"
	cmd.Short = "Tell the story of one request, and what the program did before and after it"
	cmd.Long = `Show says what egressd why says: what was asked, by which program, what each rule
and each stage decided, what was dialled, what passed and how it ended. Then it
tells what the same program of the same sandbox did within a minute before and
after that could be another try: the same host on another port, an address in
place of a name, another name or another way after a refusal.`
	cmd.Example = `  egressd log show 01KB6ZQ4SZ`
	return cmd
}

func explainCommand(o *whyOptions) *cobra.Command {
	cmd := &cobra.Command{
		Short: "Explain what happened to one request, and what would have allowed it",
		Long: `Why reads the audit log and explains one request by the id that a refused
program was shown and that egressd log prints. The beginning of an id is enough
where no other id begins with it.

A way to allow what was refused is shown only for a public destination that no
rule speaks of: never for private addresses, for metadata services, or for what
a rule refuses on purpose.`,
		Args:              cli.OneArgument("an id", "egressd log verdict:deny   (the ids are in its last column)"),
		ValidArgsFunction: o.CompleteIDs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.OutOrStdout(), args[0])
		},
	}
	logsource.AddFlags(cmd, &o.Source)
	cli.JsonFlag(cmd, &o.json)
	return cmd
}

type whyOptions struct {
	logsource.Source
	json   bool
	around bool // tell of what was before and after
}

func (o *whyOptions) run(stdout io.Writer, id string) error {
	if id == "" {
		return hint.Misused(errors.New("an empty id"), "egressd log verdict:deny   (the ids are in its last column)")
	}
	log, err := o.Open()
	if err != nil {
		return err
	}
	defer log.Close()
	story, err := FindStory(log, strings.ToUpper(id))
	if err != nil {
		return err
	}
	if story.Fix != "" {
		story.Fix += o.Answering()
	}
	if o.around {
		if err := story.link(log); err != nil {
			return err
		}
	}
	if o.json {
		return cli.PrintJSON(stdout, story)
	}
	return story.print(stdout, o.PolicyPath(), cli.PaletteFor(stdout))
}

// maxStoryRecords bounds what is kept of one flow: an inspected tunnel can
// hold any number of requests. The end of the flow is kept in any case.
const maxStoryRecords = 200

// A Story is all that the log holds about one flow.
type Story struct {
	Flow     string                 `json:"flow"`
	Decision *egress.RecordDecision `json:"decision"`
	Shadow   *egress.RecordShadow   `json:"shadow,omitempty"` // what the policy in shadow would have decided
	Fix      string                 `json:"fix,omitempty"`    // the command that would let it pass
	Times    int64                  `json:"times,omitempty"`  // how often it was refused in the same way, where that is more than once
	Signal   *egress.RecordSignal   `json:"signal,omitempty"` // what was noticed beside the decision
	LeftOut  int                    `json:"left_out,omitempty"`
	Linked   []linked               `json:"linked,omitempty"`  // what the same program did within a minute, see egressd log show
	Further  int                    `json:"further,omitempty"` // of them, those that are left out
	Records  []json.RawMessage      `json:"records"`

	records  []*egress.Record
	decisive *egress.Record
	end      *egress.Record
}

// Record is the record of the decision, or nil where there is none.
func (s *Story) Record() *egress.Record { return s.decisive }

// FindStory collects the records of the one flow whose id begins with prefix.
func FindStory(log *logsource.Reader, prefix string) (*Story, error) {
	found := map[string]*Story{}
	err := log.Each(func(text string, r *egress.Record) error {
		if r.Flow == "" || !strings.HasPrefix(r.Flow, prefix) {
			return nil
		}
		s := found[r.Flow]
		if s == nil && len(found) == maxCandidates {
			return errTooMany
		}
		if s == nil {
			s = &Story{Flow: strings.Clone(r.Flow)}
			found[s.Flow] = s
		}
		s.add(text, logs.Clone(r))
		return nil
	})
	if err != nil && !errors.Is(err, errTooMany) {
		return nil, err
	}
	switch len(found) {
	case 0:
		return nil, hint.Failed(fmt.Errorf("no record in %s has an id that begins with %q", log.Dir, prefix), "egressd log")
	case 1:
		for _, s := range found {
			return s, nil
		}
	}
	return nil, ambiguous(prefix, found)
}

// maxCandidates is how many ids are named where a prefix fits several.
const maxCandidates = 5

var errTooMany = errors.New("too many ids begin alike")

func ambiguous(prefix string, found map[string]*Story) error {
	ids := slices.Sorted(maps.Keys(found))
	return hint.Misused(fmt.Errorf("several ids begin with %q: %s", prefix, strings.Join(ids, " ")), "egressd why "+ids[len(ids)-1])
}

func (s *Story) add(text string, r *egress.Record) {
	if r.Decision != nil && (s.Decision == nil || r.Names == nil && strictness(r.Decision.Action) >= strictness(s.Decision.Action)) {
		s.Decision, s.decisive = r.Decision, r
		s.Fix = fixFor(r)
	}
	if r.Shadow != nil {
		s.Shadow = r.Shadow
	}
	if r.Signal != nil {
		s.Signal = r.Signal
	}
	if r.Count > 0 {
		s.Times = max(s.Times, 1) + r.Count
	}
	if r.Kind == egress.KindClose {
		s.end = r
	} else if len(s.records) >= maxStoryRecords {
		s.LeftOut++
		return
	}
	s.records = append(s.records, r)
	s.Records = append(s.Records, json.RawMessage(text))
}

// strictness orders the actions of records.
func strictness(action string) int {
	switch action {
	case "allow":
		return 0
	case "ask":
		return 1
	default:
		return 2
	}
}

func (s *Story) print(w io.Writer, policyPath string, colours cli.Palette) error {
	r, d := s.decisive, s.Decision
	if d == nil {
		r, d = s.records[0], &egress.RecordDecision{Action: "unknown"}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s  %s  %s\n", colours.Mark(d.Action), colours.Bold(printable.Text(d.Action)), logsource.Cell(logs.Destination(r)), printable.Text(s.Flow))
	cli.Field(&b, "asked", askedText(r))
	cli.Field(&b, "when", s.records[0].Time.Local().Format(time.DateTime))
	if s.Times > 1 {
		cli.Field(&b, "times", fmt.Sprintf("%d, %s", s.Times, s.alike()))
	}
	cli.Field(&b, "alarm", signalText(s.Signal))
	cli.Field(&b, "who", whoText(r))
	cli.Field(&b, "server name", serverName(r))
	if r.Dst != nil {
		cli.Field(&b, "addresses", strings.Join(r.Dst.Addrs, " "))
		cli.Field(&b, "address is", r.Dst.Class)
		cli.Field(&b, "dialled", r.Dst.Addr)
	}
	cli.Field(&b, "rule", printable.Rule(d.Rule, d.Layer))
	cli.Field(&b, "class", d.Class)
	cli.Field(&b, "reason", d.Reason)
	cli.Field(&b, "allowed if", strings.Join(d.AllowedIf, ", or "))
	cli.Field(&b, "question", questionText(d))
	cli.Field(&b, "policy", d.Policy)
	if s.Shadow != nil {
		cli.Field(&b, "shadow", logsource.ShadowText(s.Shadow))
		cli.Field(&b, "", "the policy "+s.Shadow.Policy+" stands beside the one in force, and decides nothing")
	}
	cli.Field(&b, "sent", r.Raw)
	cli.Field(&b, "ended", s.endText())
	if s.end != nil {
		cli.Field(&b, "note", s.end.Note)
	}
	s.printRecords(&b, colours)
	s.printLinked(&b, colours)
	s.printFix(&b, policyPath)
	_, err := io.WriteString(w, b.String())
	return err
}

// alike says what the refusals of a flow have in common.
func (s *Story) alike() string {
	for _, r := range s.records {
		if r.Names != nil {
			return "with those of other names, since the sandbox was refused too much: " + namesText(r)
		}
	}
	return "all refused alike"
}

// printRecords lists the records where the decisive one is not the only one.
func (s *Story) printRecords(b *strings.Builder, colours cli.Palette) {
	if len(s.records) < 2 {
		return
	}
	fmt.Fprintln(b, "  records")
	for _, r := range s.records {
		fmt.Fprintf(b, "    %s\n", line(r, s.records[0].Time, colours))
	}
	if s.LeftOut > 0 {
		fmt.Fprintf(b, "    and %d more: egressd log --json flow:%s\n", s.LeftOut, printable.Text(s.Flow))
	}
}

func (s *Story) printFix(b *strings.Builder, policyPath string) {
	if s.Fix == "" {
		return
	}
	cli.Field(b, "fix", s.Fix)
	what := "lets it pass for an hour, and with --save adds a line to "
	if strings.Contains(s.Fix, " --save") {
		what = "adds a line to "
	}
	cli.Field(b, "", what+policyPath+", if this is meant to pass")
}

func askedText(r *egress.Record) string {
	via := "by " + r.Via
	if r.HTTP != nil && r.HTTP.Method != "" {
		return r.HTTP.Method + " " + r.HTTP.Path + " " + via
	}
	if r.DNS != nil {
		return r.DNS.Type + " of " + r.DNS.Name + " " + via
	}
	return via
}

func whoText(r *egress.Record) string {
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

func serverName(r *egress.Record) string {
	if r.TLS == nil {
		return ""
	}
	return r.TLS.SNI
}

func (s *Story) endText() string {
	switch {
	case s.end != nil:
		text := trafficText(s.end)
		if s.end.Outcome != "" {
			text += ": " + s.end.Outcome
		}
		return text
	case s.Decision != nil && s.Decision.Action == "allow":
		return "not yet, as far as the log goes"
	default:
		return "nothing passed"
	}
}

// fixFor returns the command that would allow what r refused, up to the flags of
// [logsource.Source.Answering], or "" where none
// may be offered: a tool that always prints the command that opens the hole
// trains people to paste it.
func fixFor(r *egress.Record) string {
	host := logs.Allowable(r)
	if host == "" {
		return ""
	}
	return fixText(host, r.Flow)
}

func fixText(host, flow string) string {
	return "egressd allow " + shell.Pattern(host) + " --from " + flow
}

// questionText says which questions to a person the decision stands on, or which has to be answered.
func questionText(d *egress.RecordDecision) string {
	text := strings.Join(d.Question, " ")
	switch {
	case text != "" && d.Action == "allow":
		return text + ", approved; egressd log kind:admin says by whom"
	case text != "" && d.Class != string(policy.AskRejected):
		return text + "; egressd approve " + text
	}
	return text
}
