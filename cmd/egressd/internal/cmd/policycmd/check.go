package policycmd

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/explain"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/record"
	"github.com/spf13/cobra"
)

// Exit codes of check, the strictest of its arguments: these, else 0.
const (
	exitDeny = 1
	exitAsk  = 3
)

// methods are those that somebody may type where -X was meant.
var methods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

func newCheck() *cobra.Command {
	var o checkOptions
	cmd := &cobra.Command{
		Use:   "check [-X METHOD] [POLICY] URL|HOST[:PORT]…",
		Short: "Show what the policy says about a request, without sending it",
		Long: `Check decides as egressd serve would with the current files. It sends nothing, not
even a DNS query. Temporary rules and approvals of a running egressd serve do not
count here.

An https URL is judged as a tunnel and, if a rule has that tunnel decrypted, also by
its method and path. HOST:PORT is judged as a tunnel. A host without a port means
port 443. Names are not resolved: an address rule may still deny the connection.
POLICY is a YAML file, or a folder with an egressd.yaml, like --config.

Exit codes: 0 allow, 1 deny, 3 ask, 2 cannot tell. Of several arguments the
strictest counts.`,
		Example: `  egressd check https://api.anthropic.com/v1/messages
  egressd check -X POST https://example.com/upload
  egressd check --sandbox ci registry.npmjs.org github.com:22`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr(), args)
		},
	}
	cli.ConfigFlag(cmd, &o.config)
	cli.JSONFlag(cmd, &o.json)
	cmd.Flags().StringVarP(&o.method, "request", "X", "", "`METHOD` of the request (default GET)")
	cmd.Flags().StringVar(&o.sandbox, "sandbox", "", "`NAME` of the sandbox that asks; required if the policy lists sandboxes")
	_ = cmd.RegisterFlagCompletionFunc("sandbox", cli.CompleteSandboxes(&o.config))
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

type checkOptions struct {
	config, method, sandbox string
	json                    bool
}

func (o *checkOptions) run(stdout, stderr io.Writer, args []string) error {
	args, err := takePolicy(args, &o.config)
	if err != nil {
		return err
	}
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
	cfg.Patient = true
	p, err := cfg.Compile()
	if err != nil {
		return hint.Unsure(err)
	}
	for _, w := range cfg.WarningsFor(who.Name) {
		fmt.Fprintf(stderr, "egressd: warning: %s\n", printable.Text(w))
	}
	if !o.json {
		sayJudged(stderr, cfg, o.config != "")
	}
	code := cli.ExitOK
	if len(args) == 2 && slices.Contains(methods, args[0]) {
		return hint.Misused(fmt.Errorf("%s is no host", args[0]), "egressd check -X "+args[0]+" "+shell.Word(args[1]))
	}
	for _, arg := range args {
		a, err := explain.Check(p, config.EntryOf(who).Sandbox(), o.method, arg)
		if err != nil {
			hint.Write(stderr, fmt.Errorf("%s: %w", arg, err), "egressd check https://example.com/ or egressd check example.com:443")
			code = stricter(code, cli.ExitUnsure)
			continue
		}
		if err := printAnswer(stdout, a, o.json, cli.PaletteFor(stdout)); err != nil {
			return err
		}
		code = stricter(code, exitCode(a))
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

func exitCode(a *explain.Answer) int {
	switch a.Verdict {
	case "allow":
		return cli.ExitOK
	case "ask":
		return exitAsk
	default:
		return exitDeny
	}
}

func printAnswer(w io.Writer, a *explain.Answer, asJSON bool, colours cli.Palette) error {
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
	cli.Field(&b, "in presets", strings.Join(a.Presets[:min(len(a.Presets), 3)], ", "))
	cli.Field(&b, "credential", credentialText(a.Credential))
	cli.Field(&b, "goes up", budgetText(a.MaxBytesUp))
	cli.Field(&b, "policy", a.Policy)
	cli.Field(&b, "shadow", shadowText(a.Shadow))
	for _, n := range a.Notes {
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

func shadowText(v *explain.Shadow) string {
	if v == nil {
		return ""
	}
	return cli.ShadowText(&record.Shadow{
		Action: v.Verdict, Class: string(v.Class), Rule: v.Rule, Layer: string(v.Layer), Reason: v.Reason, Inspect: v.Inspected,
	})
}
