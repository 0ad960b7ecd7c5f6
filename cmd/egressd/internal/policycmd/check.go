package policycmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/policy"
	"github.com/spf13/cobra"
)

// Exit codes of check, the strictest of its arguments: these, else 0.
const (
	exitDeny = 1
	exitAsk  = 3
)

// NewCheck returns egressd check.
func NewCheck() *cobra.Command {
	var o checkOptions
	cmd := &cobra.Command{
		Use:   "check [-X METHOD] URL|HOST[:PORT]…",
		Short: "Say what would happen to a request, without any traffic",
		Long: `Check decides as serve would by the files as they are now, and sends nothing:
no connection, no DNS query. What a running serve has been told beside them
does not count: see egressd grants and egressd questions.

An https URL is judged as the tunnel that it goes through and, where a rule has
that tunnel inspected, with its method and path, as an http URL always is. A
HOST:PORT is judged as a tunnel. A host without a port means port 443. The
addresses that a name resolves to are judged when it is dialled, and can still
refuse what is allowed here.

Where the policy in shadow would decide otherwise, that is said; it does not
count.

Exit codes: 0 allow, 1 deny, 3 ask, 2 cannot tell. Of several arguments, the
strictest counts.`,
		Example: `  egressd check https://api.anthropic.com/v1/messages
  egressd check -X POST https://example.com/upload
  egressd check --sandbox ci registry.npmjs.org github.com:22`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr(), args)
		},
	}
	cli.ConfigFlag(cmd, &o.config)
	cli.JsonFlag(cmd, &o.json)
	cmd.Flags().StringVarP(&o.method, "request", "X", "", "the request's `METHOD` (default GET)")
	cmd.Flags().StringVar(&o.sandbox, "sandbox", "", "the `NAME` of the sandbox that asks; needed where the policy lists sandboxes")
	_ = cmd.RegisterFlagCompletionFunc("sandbox", cli.CompleteSandboxes(&o.config))
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

type checkOptions struct {
	config, method, sandbox string
	json                    bool
}

func (o *checkOptions) run(stdout, stderr io.Writer, args []string) error {
	if len(args) == 0 {
		return hint.Misused(errors.New("there is nothing to check"), "egressd check https://example.com/")
	}
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
	for _, w := range cfg.WarningsFor(who.Name) {
		fmt.Fprintf(stderr, "egressd: warning: %s\n", printable.Text(w))
	}
	code := cli.ExitOK
	for _, arg := range args {
		a, err := o.answer(p, config.EntryOf(who).Sandbox(), arg)
		if err != nil {
			cli.Explain(stderr, fmt.Errorf("%s: %w", arg, err), "egressd check https://example.com/ or egressd check example.com:443")
			code = stricter(code, cli.ExitUnsure)
			continue
		}
		if err := a.print(stdout, o.json, cli.PaletteFor(stdout)); err != nil {
			return err
		}
		code = stricter(code, a.code())
	}
	if code == cli.ExitOK {
		return nil
	}
	return cli.Status(code)
}

// stricter orders exit codes: what cannot be told counts above a refusal.
func stricter(a, b int) int {
	for _, code := range []int{cli.ExitUnsure, exitDeny, exitAsk} {
		if a == code || b == code {
			return code
		}
	}
	return cli.ExitOK
}

// An answer is what would happen to one request.
type answer struct {
	Request   string       `json:"request"` // what was judged: a tunnel that is not inspected shows less than a URL says
	Sandbox   string       `json:"sandbox"`
	Verdict   string       `json:"verdict"`
	Class     policy.Class `json:"class,omitempty"`
	Rule      string       `json:"rule,omitempty"`
	Layer     policy.Layer `json:"layer,omitempty"`
	Reason    string       `json:"reason,omitempty"`
	AllowedIf []string     `json:"allowed_if,omitempty"`
	Policy    string       `json:"policy"`

	// Inspected is true for a tunnel that is inspected, and for a request
	// inside one.
	Inspected bool `json:"inspected,omitempty"`

	// Credential is the id of the rule whose credential the request is given.
	Credential string `json:"credential,omitempty"`

	// MaxBytesUp is how many bytes of the tunnel, or of the request's body, may go
	// up; 0 means any number.
	MaxBytesUp int64 `json:"max_bytes_up,omitempty"`

	// AddressesJudged is false for a name: it is resolved only when dialled.
	AddressesJudged bool `json:"addresses_judged"`

	// Shadow is what the policy in shadow would say, where that differs.
	Shadow *shadowView `json:"shadow,omitempty"`

	notes []string
}

func (o *checkOptions) answer(p *policy.Policy, who policy.Sandbox, arg string) (*answer, error) {
	j, err := o.judge(p, who, arg, nil)
	if err != nil {
		return nil, err
	}
	return o.answerOf(p, j), nil
}

// A judgement is what was asked, and what came of it.
type judgement struct {
	asked, judged policy.Request // judged is what counted of it
	decision      policy.Decision
}

// judge decides an argument whose name resolves to addrs, as far as that is known.
func (o *checkOptions) judge(p *policy.Policy, who policy.Sandbox, arg string, addrs []netip.Addr) (j judgement, err error) {
	if j.asked, err = parseCheck(arg, o.method); err != nil {
		return j, err
	}
	j.asked.Sandbox, j.asked.Usage, j.asked.Time, j.asked.Destination.Addrs = who, new(policy.Usage), time.Now(), addrs
	j.decision, j.judged = p.Judge(context.Background(), j.asked)
	return j, nil
}

func (o *checkOptions) answerOf(p *policy.Policy, j judgement) *answer {
	d, dst := j.decision, &j.judged.Destination
	a := &answer{
		Request: requestText(&j.judged), Sandbox: j.asked.Sandbox.Name, Verdict: d.Verdict.Action(),
		Class: d.Class, Rule: d.Rule, Layer: d.Layer, Reason: d.Reason, AllowedIf: d.AllowedIf, Policy: d.Policy,
		Inspected:       d.Verdict == policy.Inspect || j.judged.TLS != nil,
		Credential:      d.Inject,
		MaxBytesUp:      d.MaxBytesUp,
		AddressesJudged: dst.Addr.IsValid() || len(dst.Addrs) > 0,
	}
	a.Shadow = shadowOf(p, j.asked, d, a.Inspected)
	a.notes = notesOn(d, &j.judged, j.asked.HTTP != nil || o.method != "")
	if a.Verdict == "allow" && !a.AddressesJudged {
		a.notes = append(a.notes, "the addresses that the name resolves to are judged when it is dialled")
	}
	return a
}

// parseCheck reads an argument, with the method where it is a URL.
func parseCheck(arg, method string) (policy.Request, error) {
	if method != "" && strings.Contains(arg, "://") {
		arg = method + " " + arg
	}
	return policy.ParseCheck(arg)
}

// notesOn says how what was judged differs from what was asked, which had a
// method if saidMore.
func notesOn(d policy.Decision, judged *policy.Request, saidMore bool) []string {
	switch {
	case d.Verdict == policy.Inspect && saidMore:
		return []string{"the tunnel is inspected, and every request in it decided; ask about a URL to have its method count"}
	case d.Verdict == policy.Inspect:
		return []string{"the tunnel is inspected, and every request in it decided"}
	case judged.HTTP != nil && judged.TLS != nil:
		return []string{"judged as a request inside a tunnel that is inspected"}
	case judged.HTTP == nil && saidMore:
		return []string{"judged as a tunnel: it is not inspected, so its method and path do not count"}
	}
	return nil
}

func requestText(r *policy.Request) string {
	switch {
	case r.HTTP == nil:
		return "CONNECT " + r.Destination.String()
	case r.TLS != nil:
		return r.HTTP.Method + " https://" + r.Destination.String() + r.HTTP.Path
	}
	return r.HTTP.Method + " http://" + r.Destination.String() + r.HTTP.Path
}

func (a *answer) code() int {
	switch a.Verdict {
	case "allow":
		return cli.ExitOK
	case "ask":
		return exitAsk
	default:
		return exitDeny
	}
}

func (a *answer) print(w io.Writer, asJSON bool, colours cli.Palette) error {
	if asJSON {
		return cli.PrintJSON(w, a)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s  %s\n", colours.Mark(a.Verdict), colours.Bold(a.Verdict), printable.Text(a.Request))
	cli.Field(&b, "sandbox", a.Sandbox)
	cli.Field(&b, "rule", printable.Rule(a.Rule, string(a.Layer)))
	cli.Field(&b, "class", string(a.Class))
	cli.Field(&b, "reason", a.Reason)
	cli.Field(&b, "allowed if", strings.Join(a.AllowedIf, ", or "))
	cli.Field(&b, "credential", credentialText(a.Credential))
	cli.Field(&b, "goes up", budgetText(a.MaxBytesUp))
	cli.Field(&b, "policy", a.Policy)
	cli.Field(&b, "shadow", a.Shadow.text())
	for _, n := range a.notes {
		cli.Field(&b, "note", n)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func budgetText(most int64) string {
	if most == 0 {
		return ""
	}
	return fmt.Sprintf("at most %d bytes", most)
}

func credentialText(rule string) string {
	if rule == "" {
		return ""
	}
	return "that of rule " + rule + " is added"
}

// Explain is what check says of a request, for who asks a daemon.
func Explain(p *policy.Policy, who policy.Sandbox, method, request string) (any, error) {
	o := checkOptions{method: method}
	return o.answer(p, who, request)
}
