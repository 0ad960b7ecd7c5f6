package policy

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
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

// newCheck returns egressd policy check and egressd check, which are one command.
func newCheck(f *policyFlags) *cobra.Command {
	var o checkOptions
	cmd := &cobra.Command{
		Use:   "check [-X METHOD] [-v] [POLICY] [URL|HOST[:PORT]|PATH]…",
		Short: "Find mistakes in a policy, or show what it says about a request",
		Long: `Without a URL or HOST, check reads the policy file and its Rego as egressd serve would,
and runs the tests in the file. It prints errors, warnings (allowed, but seldom meant)
and lints (conditions that also hold for hosts of other people). With a PATH it checks
that policy file, the policy file in that folder, or Rego files and folders alone.

With a URL or HOST, check decides as egressd serve would with the current files. It
sends nothing, not even a DNS query. Temporary rules and approvals of a running egressd
serve do not count here. An https URL is judged as a tunnel and, if a rule has that
tunnel decrypted, also by its method and path. HOST:PORT is judged as a tunnel. A host
without a port means port 443. Names are not resolved: an address rule may still deny
the connection; --address says what the name resolves to. POLICY is a YAML file, or a
folder with an egressd.yaml, like --config.

--body and -H add a body and header fields, for rules that read them: json, mcp, model,
graphql, git, headers. Without --body a request has none.

-v shows what each part of the policy says: the baseline, the lines of the file,
presets, Rego, and the sandbox's own rules. It names the rule that decides with its file
and line, lists the other rules about the same destination in their order, and says
what would change the decision.

Exit codes of a request: 0 allow, 1 deny, 3 ask, 2 cannot tell; of several the strictest
counts. Of a policy: 0 nothing, or only warnings; 1 an error or a lint; 2 it could not
be checked.`,
		Example: `  egressd policy check
  egressd policy check policy/
  egressd check https://api.anthropic.com/v1/messages
  egressd check -X POST -v https://example.com/upload
  egressd check --sandbox ci registry.npmjs.org github.com:22`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.config, o.json = f.config, f.json
			o.stderr = cmd.ErrOrStderr()
			if !o.aboutRequests(args) {
				return o.check(cmd.OutOrStdout(), args)
			}
			return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr(), args)
		},
	}
	cmd.Flags().StringVarP(&o.method, "request", "X", "", "`METHOD` of the request (default GET)")
	cmd.Flags().StringVar(&o.sandbox, "sandbox", "", "`NAME` of the sandbox that asks; required if the policy lists sandboxes")
	cmd.Flags().BoolVarP(&o.verbose, "verbose", "v", false, "show which rule decides a request, and what would change that")
	cmd.Flags().StringSliceVar(&o.addresses, "address", nil, "assume that the name resolves to this `ADDRESS`; implies -v")
	cmd.Flags().StringArrayVarP(&o.fields, "header", "H", nil, "header field of the request, as `NAME:VALUE`")
	cmd.Flags().StringVar(&o.body, "body", "", "`FILE` with the body of the request, or - for standard input; implies POST, and application/json if -H names no other type")
	_ = cmd.RegisterFlagCompletionFunc("sandbox", cli.CompleteSandboxes(&f.config))
	return cmd
}

type checkOptions struct {
	policyOptions
	method, sandbox string
	verbose         bool
	addresses       []string
	fields          []string // "Name: value"
	body            string   // path of the file

	header  map[string][]string // of fields
	content []byte              // of the body; nil: none
}

// aboutRequests reports whether args name requests. Otherwise they are a policy, or files and folders of one.
func (o *checkOptions) aboutRequests(args []string) bool {
	if o.method != "" || o.sandbox != "" || o.verbose || len(o.addresses) > 0 || len(o.fields) > 0 || o.body != "" {
		return true
	}
	return slices.ContainsFunc(args, func(arg string) bool { return !isPath(arg) })
}

// isPath reports whether a word is meant as a file or folder. A word that is neither there nor written like a path is a host.
func isPath(word string) bool {
	if strings.Contains(word, "://") {
		return false
	}
	if ext := filepath.Ext(word); strings.Contains(word, "/") || ext == ".rego" || ext == ".yaml" || ext == ".yml" {
		return true
	}
	_, err := os.Stat(word)
	return err == nil
}

// run judges requests.
func (o *checkOptions) run(stdout, stderr io.Writer, args []string) error {
	args, err := takePolicy(args, &o.config)
	if err != nil {
		return err
	}
	switch {
	case len(args) == 0:
		return hint.Misused(errors.New("there is no request to check"), "egressd check https://example.com/")
	case len(args) == 2 && slices.Contains(methods, args[0]):
		return hint.Misused(fmt.Errorf("%s is no host", args[0]), "egressd check -X "+args[0]+" "+shell.Word(args[1]))
	}
	if err := o.readRequest(); err != nil {
		return err
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
	for _, arg := range args {
		a, err := o.judge(stdout, cfg, p, config.EntryOf(who).Sandbox(), arg)
		if wrong, ok := errors.AsType[*requestError](err); ok {
			hint.Write(stderr, wrong, cmp.Or(hint.Next(wrong.error), "egressd check https://example.com/ or egressd check example.com:443"))
			code = stricter(code, cli.ExitUnsure)
			continue
		}
		if err != nil {
			return err
		}
		code = stricter(code, exitCode(a))
	}
	if code == cli.ExitOK {
		return nil
	}
	return cli.Status(code)
}

// readRequest reads the header fields and the body.
func (o *checkOptions) readRequest() (err error) {
	for _, field := range o.fields {
		name, value, ok := strings.Cut(field, ":")
		if name = strings.ToLower(strings.TrimSpace(name)); !ok || policy.CheckHeaderName(name) != nil {
			return hint.Misused(fmt.Errorf("-H %s is no field that a rule can compare", shell.Word(field)), "-H 'Accept: text/html'")
		}
		if o.header == nil {
			o.header = map[string][]string{}
		}
		o.header[name] = append(o.header[name], strings.TrimSpace(value))
	}
	switch o.body {
	case "":
		return nil
	case "-":
		o.content, err = io.ReadAll(io.LimitReader(os.Stdin, bodyMost+1))
	default:
		o.content, err = os.ReadFile(o.body)
	}
	switch {
	case err != nil:
		return hint.Misused(err, "--body FILE")
	case len(o.content) > bodyMost:
		return hint.Misused(fmt.Errorf("the body is longer than %d bytes", bodyMost), "a shorter one")
	case o.header["content-type"] == nil:
		if o.header == nil {
			o.header = map[string][]string{}
		}
		o.header["content-type"] = []string{"application/json"}
	}
	return nil
}

// bodyMost is the default of limits.body_bytes.
const bodyMost = 32 << 20

// A requestError says that an argument is no request that can be judged.
type requestError struct{ error }

func (e *requestError) Unwrap() error { return e.error }

// judge decides one request and prints the answer. An error of the request is a [*requestError].
func (o *checkOptions) judge(stdout io.Writer, cfg *config.Config, p *policy.Policy, who policy.Sandbox, arg string) (*explain.Answer, error) {
	if !o.verbose && len(o.addresses) == 0 {
		a, err := explain.Check(p, explain.Question{Sandbox: who, Method: o.method, Request: arg, Header: o.header, Body: o.content})
		if err != nil {
			return nil, &requestError{fmt.Errorf("%s: %w", arg, err)}
		}
		return a, printAnswer(stdout, a, o.json, cli.PaletteFor(stdout))
	}
	addrs, err := o.resolved(arg)
	if err != nil {
		return nil, &requestError{err}
	}
	e, err := explain.Explain(cfg, p, explain.Question{
		Sandbox: who, Method: o.method, Request: arg, Header: o.header, Body: o.content, Addresses: addrs, Flags: (&source.Source{Config: o.config}).Flags(),
	})
	if err != nil {
		return nil, &requestError{fmt.Errorf("%s: %w", arg, err)}
	}
	return &e.Answer, printExplanation(stdout, e, o.json, cli.PaletteFor(stdout))
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
	cli.Field(&b, "sets", strings.Join(a.Set, ", "))
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
