package policycmd

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/explain"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/policy"
	"github.com/spf13/cobra"
)

func newPolicyExplainCommand() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain [-X METHOD] [POLICY] URL|HOST[:PORT]",
		Short: "Show which rule decides a request, and what would change it",
		Long: `Explain decides as check does, and sends nothing. It shows what each part of the policy
says: the baseline, the lines of the file, presets, Rego, and the sandbox's own
rules. It names the rule that decides with its file and line, and lists the other
rules about the same destination in their order.

Names are not resolved. Add --address to check address rules too. POLICY is a YAML
file, or a folder with an egressd.yaml, like --config.

Exit codes: 0 allow, 1 deny, 3 ask, 2 cannot tell.`,
		Example: `  egressd policy explain https://api.github.com/repos/acme/x
  egressd policy explain -X POST --sandbox ci https://example.com/upload
  egressd policy explain --address 93.184.216.34 example.com:443`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			args, err := takePolicy(args, &o.config)
			if err != nil {
				return err
			}
			if err := onlyOne(args); err != nil {
				return err
			}
			return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0])
		},
	}
	cli.ConfigFlag(cmd, &o.config)
	cli.JSONFlag(cmd, &o.json)
	cmd.Flags().StringVarP(&o.method, "request", "X", "", "`METHOD` of the request (default GET)")
	cmd.Flags().StringVar(&o.sandbox, "sandbox", "", "`NAME` of the sandbox that asks; required if the policy lists sandboxes")
	cmd.Flags().StringSliceVar(&o.addresses, "address", nil, "assume that the name resolves to this `ADDRESS`")
	_ = cmd.RegisterFlagCompletionFunc("sandbox", cli.CompleteSandboxes(&o.config))
	return cmd
}

type explainOptions struct {
	checkOptions
	addresses []string
}

func (o *explainOptions) run(stdout, stderr io.Writer, arg string) error {
	cfg, err := config.Load(o.config)
	if err != nil {
		return hint.Unsure(err)
	}
	who, err := cfg.Sandbox(o.sandbox)
	if err != nil {
		return hint.Unsure(err)
	}
	cfg.Patient = true
	p, err := cfg.Compile()
	if err != nil {
		return hint.Unsure(err)
	}
	addrs, err := o.resolved(arg)
	if err != nil {
		return hint.Unsure(err)
	}
	e, err := explain.Explain(cfg, p, explain.Question{
		Sandbox: config.EntryOf(who).Sandbox(), Method: o.method, Request: arg, Addresses: addrs,
		Flags: (&source.Source{Config: o.config}).Flags(),
	})
	if err != nil {
		return hint.Unsure(hint.Misused(fmt.Errorf("%s: %w", arg, err), "egressd policy explain https://example.com/, or example.com:443"))
	}
	if !o.json {
		sayJudged(stderr, cfg, o.config != "")
	}
	if err := printExplanation(stdout, e, o.json, cli.PaletteFor(stdout)); err != nil {
		return err
	}
	if code := exitCode(&e.Answer); code != cli.ExitOK {
		return cli.Status(code)
	}
	return nil
}

// onlyOne refuses any number of requests but one, with what to type.
func onlyOne(args []string) error {
	switch {
	case len(args) == 0:
		return hint.Misused(errors.New("there is nothing to explain"), "egressd policy explain https://example.com/")
	case len(args) == 1:
		return nil
	case slices.Contains(methods, args[0]):
		return hint.Misused(fmt.Errorf("%s is no host", args[0]), "egressd policy explain -X "+args[0]+" "+shell.Word(args[1]))
	}
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = shell.Word(arg)
	}
	return hint.Misused(fmt.Errorf("one request is explained at a time, and there are %d", len(args)),
		"egressd policy explain "+words[0]+", or for verdicts alone: egressd check "+strings.Join(words, " "))
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
	if asked, err := explain.Parse(arg, o.method); err == nil && len(addrs) > 0 && asked.Destination.Addr.IsValid() {
		return nil, hint.Misused(errors.New("the destination is an address, which resolves to nothing else"), "leave out --address")
	}
	return addrs, nil
}

func printExplanation(w io.Writer, e *explain.Explanation, asJSON bool, colours cli.Palette) error {
	if asJSON {
		return cli.PrintJSON(w, e)
	}
	var b strings.Builder
	writeExplanation(&b, e, colours)
	_, err := io.WriteString(w, b.String())
	return err
}

func writeExplanation(b *strings.Builder, e *explain.Explanation, colours cli.Palette) {
	fmt.Fprintf(b, "%s %s  %s\n", colours.Mark(e.Verdict), colours.Bold(e.Verdict), printable.Text(e.Request))
	cli.Field(b, "sandbox", e.Sandbox)
	cli.Field(b, "rule", printable.Rule(e.Rule, string(e.Layer)))
	for i := range e.Written {
		cli.Field(b, "written", e.Written[i].String())
	}
	cli.Field(b, "class", string(e.Class))
	cli.Field(b, "address is", e.AddressClass)
	cli.Field(b, "reason", e.Reason)
	cli.Field(b, "allowed if", strings.Join(e.AllowedIf, ", or "))
	cli.Field(b, "credential", credentialText(e.Credential))
	cli.Field(b, "policy", e.Policy)
	cli.Field(b, "shadow", shadowText(e.Shadow))
	for _, n := range e.Notes {
		cli.Field(b, "note", n)
	}
	fmt.Fprintln(b, "  opinions")
	for i := range e.Opinions {
		writeOpinion(b, &e.Opinions[i], colours)
	}
	cli.Field(b, "fix", e.Fix)
	cli.Field(b, "change", e.Change)
}

func writeOpinion(b *strings.Builder, v *explain.Opinion, colours cli.Palette) {
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
		fmt.Fprintf(b, "      %s\n", printable.Text(v.Written[i].String()))
	}
}
