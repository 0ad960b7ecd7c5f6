package policycmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/logsource"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
	"github.com/spf13/cobra"
)

func newPolicyExplainCommand() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain [-X METHOD] URL|HOST[:PORT]",
		Short: "Say which rule decides a request, where it is written, and what would change it",
		Long: `Explain decides as check does, and sends nothing. It shows what every part of the
policy says by itself: the baseline, the lines of the file, the presets, each
entry of rego, and what the sandbox may. It shows the rule that decides, with
its file, line and column, and the other lines about the same destination in the
order in which they count.

Names are not resolved, so rules about addresses do not speak; --address says
what the name would resolve to. A command that would let the request pass is
shown only where egressd why would show one.

Exit codes: 0 allow, 1 deny, 3 ask, 2 cannot tell.`,
		Example: `  egressd policy explain https://api.github.com/repos/acme/x
  egressd policy explain -X POST --sandbox ci https://example.com/upload
  egressd policy explain --address 93.184.216.34 example.com:443`,
		Args:              cli.OneArgument("a URL or a host", "egressd policy explain https://example.com/"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.OutOrStdout(), args[0])
		},
	}
	cli.ConfigFlag(cmd, &o.config)
	cli.JsonFlag(cmd, &o.json)
	cmd.Flags().StringVarP(&o.method, "request", "X", "", "the request's `METHOD` (default GET)")
	cmd.Flags().StringVar(&o.sandbox, "sandbox", "", "the `NAME` of the sandbox that asks; needed where the policy lists sandboxes")
	cmd.Flags().StringSliceVar(&o.addresses, "address", nil, "an `ADDRESS` that the name would resolve to")
	_ = cmd.RegisterFlagCompletionFunc("sandbox", cli.CompleteSandboxes(&o.config))
	return cmd
}

type explainOptions struct {
	checkOptions
	addresses []string
}

// An explanation is an answer, and how it comes about.
type explanation struct {
	answer
	AddressClass string        `json:"address_class,omitempty"`
	Written      []rulePlace   `json:"written,omitempty"` // where the rule that decides is
	Opinions     []opinionView `json:"opinions"`
	Fix          string        `json:"fix,omitempty"`
	Change       string        `json:"change,omitempty"` // what would change it, where no command does
}

// An opinionView is what one part of the policy says by itself.
type opinionView struct {
	Part      string         `json:"part"`
	Layer     policy.Layer   `json:"layer,omitempty"`
	Verdict   string         `json:"verdict"`
	Class     policy.Class   `json:"class,omitempty"`
	Rule      string         `json:"rule,omitempty"`
	Reason    string         `json:"reason,omitempty"`
	AllowedIf []string       `json:"allowed_if,omitempty"`
	Error     string         `json:"error,omitempty"`
	Written   []rulePlace    `json:"written,omitempty"`
	Lines     []standingView `json:"lines,omitempty"`
}

// A standingView is a line about the destination, and why it decides or does not.
type standingView struct {
	rulePlace
	Effect  string `json:"effect"`
	Pattern string `json:"pattern"`
	Address string `json:"address,omitempty"`
	Stands  string `json:"stands"`
}

func (o *explainOptions) run(stdout io.Writer, arg string) error {
	cfg, err := config.Load(o.config)
	if err != nil {
		return hint.Unsure(err)
	}
	who, err := cfg.Sandbox(o.sandbox)
	if err != nil {
		return hint.Unsure(err)
	}
	p, err := cfg.Compile()
	if err != nil {
		return hint.Unsure(err)
	}
	addrs, err := o.resolved(arg)
	if err != nil {
		return hint.Unsure(err)
	}
	e, err := o.explain(cfg, p, config.EntryOf(who).Sandbox(), arg, addrs)
	if err != nil {
		return hint.Unsure(hint.Misused(fmt.Errorf("%s: %w", arg, err), "egressd policy explain https://example.com/, or example.com:443"))
	}
	if err := e.print(stdout, o.json, cli.PaletteFor(stdout)); err != nil {
		return err
	}
	if code := e.code(); code != cli.ExitOK {
		return cli.Status(code)
	}
	return nil
}

// resolved reads the addresses that the name is taken to have.
func (o *explainOptions) resolved(arg string) (addrs []netip.Addr, err error) {
	for _, text := range o.addresses {
		_, addr, err := policy.ParseHost(text)
		if err != nil || !addr.IsValid() {
			return nil, hint.Misused(fmt.Errorf("--address %s is no address", text), "--address 93.184.216.34")
		}
		addrs = append(addrs, addr)
	}
	if asked, err := parseCheck(arg, o.method); err == nil && len(addrs) > 0 && asked.Destination.Addr.IsValid() {
		return nil, hint.Misused(errors.New("the destination is an address, which resolves to nothing else"), "leave out --address")
	}
	return addrs, nil
}

func (o *explainOptions) explain(cfg *config.Config, p *policy.Policy, who policy.Sandbox, arg string, addrs []netip.Addr) (*explanation, error) {
	j, err := o.judge(p, who, arg, addrs)
	if err != nil {
		return nil, err
	}
	lines, err := cfg.Lines()
	if err != nil {
		return nil, err
	}
	e := &explanation{answer: *o.answerOf(p, j), AddressClass: j.decision.AddressClass}
	for _, opinion := range p.Opinions(context.Background(), &j.judged) {
		e.Opinions = append(e.Opinions, viewOfOpinion(cfg, &opinion, lines, &j.decision))
	}
	e.Written = e.writtenBy(&j.decision)
	e.Fix, e.Change = e.wayOut(o.config, &j.asked, &j.decision)
	if !e.AddressesJudged {
		e.notes = append(e.notes, "rules about addresses have no say, since names are not resolved here; --address ADDR gives them one")
	}
	return e, nil
}

// viewOfOpinion says an opinion, and where what it comes from is written.
func viewOfOpinion(c *config.Config, o *policy.Opinion, lines []policy.Line, decision *policy.Decision) opinionView {
	d := &o.Decision
	v := opinionView{Part: config.PartName(o), Layer: o.Layer, Verdict: d.Verdict.String(), Class: d.Class, Rule: d.Rule, Reason: d.Reason, AllowedIf: d.AllowedIf}
	if o.Err != nil {
		v.Error = o.Err.Error()
	}
	if part := c.PartBy(o.By); part != nil {
		if v.Part = part.At; o.Part == policy.PartCeiling {
			v.Part += " ceiling"
		}
		if d.Verdict != policy.Abstain && o.Err == nil {
			v.Written = regoAt(part, d)
		}
	}
	lines = slices.DeleteFunc(slices.Clone(lines), func(l policy.Line) bool { return l.Layer != o.Layer })
	for i := range o.Rules {
		at := lineAt(lines, &o.Rules[i])
		if d.Rule == at.Rule && v.Written == nil {
			v.Written = []rulePlace{at}
		}
		v.Lines = append(v.Lines, standingOf(o, i, at, decision))
	}
	return v
}

// standingOf says how a line stands to the others, and to what was decided.
func standingOf(o *policy.Opinion, i int, at rulePlace, decision *policy.Decision) standingView {
	s, stands, first := &o.Rules[i], "is less specific", firstOf(o)
	switch {
	case i == first && decision.Rule == s.Rule:
		stands = "decides"
	case i == first:
		stands = "would, were it alone"
	case s.Depends:
		stands = "depends on the request"
	case !s.Holds:
		stands = "is not about this request"
	case s.Ties:
		stands = "ties, and the stricter counts"
	case o.Decision.Verdict == policy.Abstain:
		stands = "has no say"
	case i < first:
		stands = "holds, and a refusal of the address counts"
	}
	v := standingView{rulePlace: at, Effect: s.Effect.String(), Pattern: s.Pattern.String(), Stands: stands}
	if s.Address.IsValid() {
		v.Address = s.Address.String()
	}
	return v
}

// firstOf is the first line with the id of the rule that spoke, those that hold
// first: the lines of a preset share one. It is -1 where no line spoke.
func firstOf(o *policy.Opinion) int {
	spoke := func(s policy.Standing) bool { return s.Rule == o.Decision.Rule }
	if i := slices.IndexFunc(o.Rules, func(s policy.Standing) bool { return spoke(s) && (s.Holds || s.Depends) }); i >= 0 {
		return i
	}
	return slices.IndexFunc(o.Rules, spoke)
}

// writtenBy returns where the rule of the decision is: the part that says the same
// knows.
func (e *explanation) writtenBy(d *policy.Decision) []rulePlace {
	for i := range e.Opinions {
		o := &e.Opinions[i]
		if o.Rule == d.Rule && o.Written != nil && (o.Verdict == d.Verdict.String() || d.Verdict != policy.Deny) {
			return o.Written
		}
	}
	return nil
}

// wayOut is what would change a refusal: a command where one may be offered, else
// words.
func (e *explanation) wayOut(config string, asked *policy.Request, d *policy.Decision) (fix, change string) {
	if d.Verdict.Action() == "allow" {
		return "", ""
	}
	if host := offered(asked, d); host != "" {
		source := logsource.Source{Config: config}
		return "egressd allow " + shell.Pattern(host) + " --save" + source.Flags(), ""
	}
	switch {
	case d.Class == policy.AddressDenied:
		return "", addressChange(asked, d)
	case d.Layer == policy.PerSandbox && d.Class == policy.DefaultDeny:
		return "", "a line under allow of the sandbox: what it may reach is what stands there"
	case d.Class == policy.PolicyError:
		return "", "a policy that can be evaluated: the opinions say what failed"
	case d.Rule == "ceiling":
		return "", "a wider ceiling, or a rule of the organisation that allows it"
	case len(d.AllowedIf) > 0:
		return "", "another request: " + strings.Join(d.AllowedIf, ", or ")
	case len(e.Written) == 0:
		return "", ""
	case e.fromFile(d):
		return "", "rule " + d.Rule + " without it, or a line under allow that is more specific"
	}
	return "", "rule " + d.Rule + " without it: a refusal counts, whatever else allows"
}

// fromFile reports whether the rule of a decision is a line of the file.
func (e *explanation) fromFile(d *policy.Decision) bool {
	for i := range e.Opinions {
		for _, l := range e.Opinions[i].Lines {
			if l.Rule == d.Rule && e.Opinions[i].Part == string(policy.PartFile) {
				return true
			}
		}
	}
	return false
}

// offered returns the host that a command may allow: under the same rules as for a
// record of the refusal.
func offered(asked *policy.Request, d *policy.Decision) string {
	if d.Layer == policy.PerSandbox {
		return ""
	}
	dst := &asked.Destination
	host := logs.RefusedHost(&egress.Record{
		Dst:      &egress.RecordDst{Host: dst.Host, Port: dst.Port, Class: d.AddressClass},
		Decision: &egress.RecordDecision{Action: d.Verdict.Action(), Class: string(d.Class)},
	})
	if p, err := policy.ParsePattern(host); host == "" || err != nil || policy.CheckGrant(p) != nil {
		return ""
	}
	return host
}

func addressChange(asked *policy.Request, d *policy.Decision) string {
	p, err := policy.ParsePattern(asked.Destination.String())
	if err == nil && policy.CheckGrant(p) != nil {
		return "nothing that a sandbox should need: " + d.AddressClass + " is open to none"
	}
	return "another destination: what is " + d.AddressClass + " is open only where a line under allow names just that"
}

func (e *explanation) print(w io.Writer, asJSON bool, colours cli.Palette) error {
	if asJSON {
		return cli.PrintJSON(w, e)
	}
	var b strings.Builder
	e.write(&b, colours)
	_, err := io.WriteString(w, b.String())
	return err
}

func (e *explanation) write(b *strings.Builder, colours cli.Palette) {
	fmt.Fprintf(b, "%s %s  %s\n", colours.Mark(e.Verdict), colours.Bold(e.Verdict), printable.Text(e.Request))
	cli.Field(b, "sandbox", e.Sandbox)
	cli.Field(b, "rule", printable.Rule(e.Rule, string(e.Layer)))
	for i := range e.Written {
		cli.Field(b, "written", e.Written[i].text())
	}
	cli.Field(b, "class", string(e.Class))
	cli.Field(b, "address is", e.AddressClass)
	cli.Field(b, "reason", e.Reason)
	cli.Field(b, "allowed if", strings.Join(e.AllowedIf, ", or "))
	cli.Field(b, "credential", credentialText(e.Credential))
	cli.Field(b, "policy", e.Policy)
	cli.Field(b, "shadow", e.Shadow.text())
	for _, n := range e.notes {
		cli.Field(b, "note", n)
	}
	fmt.Fprintln(b, "  opinions")
	for i := range e.Opinions {
		e.Opinions[i].write(b, colours)
	}
	cli.Field(b, "fix", e.Fix)
	cli.Field(b, "change", e.Change)
}

func (v *opinionView) write(b *strings.Builder, colours cli.Palette) {
	said := "no opinion"
	if v.Verdict != policy.Abstain.String() {
		said = v.Verdict + " by " + v.Rule
	}
	if v.Class != "" {
		said += " (" + string(v.Class) + ")"
	}
	fmt.Fprintf(b, "    %-9s  %s\n", printable.Text(v.Part), printable.Text(said))
	if v.Error != "" {
		fmt.Fprintf(b, "      %s\n", printable.Text(v.Error))
	}
	for i := range v.Lines {
		l := &v.Lines[i]
		about := l.Pattern
		if l.Address != "" {
			about += ", for " + l.Address
		}
		fmt.Fprintf(b, "      %s %s:%d:%d  %s  %s: %s\n", colours.Mark(l.Effect), printable.Text(l.File), l.Line, l.Column, printable.Text(l.Rule), printable.Text(about), l.Stands)
	}
	if len(v.Lines) > 0 {
		return
	}
	for i := range v.Written {
		fmt.Fprintf(b, "      %s\n", printable.Text(v.Written[i].text()))
	}
}
