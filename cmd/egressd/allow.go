package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/config"
	"github.com/egressd/egressd/cmd/egressd/internal/logcmd"
	"github.com/egressd/egressd/cmd/egressd/internal/logs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/records"
	"github.com/egressd/egressd/sandbox"
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

Only --save is built: temporary grants need the admin listener, which this
version does not have.`,
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
		return cli.Failed(errors.New("temporary grants need the admin listener, which this version does not have"), o.saving(patterns))
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

// A grant is an addition to a policy file while it is being judged. Nothing is
// written before all of it is.
type grant struct {
	path      string
	old, text []byte // the file as it is, and with the new lines
	config    *config.Config
	before    *policy.Policy
	after     *policy.Policy
	sandboxes []string // for whom it is judged
	added     []policy.Pattern
	already   []policy.Pattern
	warnings  []string
}

// newGrant reads the policy file. A list without a value, which serve refuses,
// is taken for an empty one, since it will not be one.
func newGrant(path string) (*grant, error) {
	path, err := config.Find(path)
	if err != nil {
		return nil, err
	}
	g := &grant{path: path}
	if g.old, err = config.Read(path); err != nil {
		return nil, cli.Misused(fmt.Errorf("read policy: %w", err), "egressd init --print, for a policy to start from")
	}
	text, err := policy.AllowText(path, g.old)
	if err != nil {
		return nil, cli.Misused(err, "correct "+path+", then egressd check URL")
	}
	if g.config, g.before, err = compileText(path, text); err != nil {
		return nil, err
	}
	for _, s := range g.config.File.Sandboxes {
		g.sandboxes = append(g.sandboxes, s.Name)
	}
	if len(g.sandboxes) == 0 {
		g.sandboxes = []string{sandbox.Default}
	}
	return g, nil
}

// compileText makes the policy that text would be at path.
func compileText(path string, text []byte) (*config.Config, *policy.Policy, error) {
	c, err := config.New(path, text, config.OrganisationPath)
	if err != nil {
		return nil, nil, err
	}
	p, err := c.Compile()
	return c, p, err
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

func (g *grant) warn(format string, arguments ...any) {
	g.warnings = append(g.warnings, fmt.Sprintf(format, arguments...))
}

// add puts the patterns that are not allowed already into the text, and judges
// what comes out.
func (g *grant) add(patterns []policy.Pattern) error {
	for _, p := range patterns {
		if g.allowed(p) {
			g.already = append(g.already, p)
		} else {
			g.added = append(g.added, p)
		}
	}
	if len(g.added) == 0 {
		return nil
	}
	var err error
	if g.text, err = policy.AllowText(g.path, g.old, g.added...); err != nil {
		return cli.Failed(err, "egressd check HOST, after the edit")
	}
	if _, g.after, err = compileText(g.path, g.text); err != nil {
		return cli.Failed(fmt.Errorf("with that, the file would be refused, so nothing was written\n%w", err), "where it is a test that no longer holds, change it in "+g.path+" first")
	}
	for _, p := range g.added {
		if err := g.judge(p); err != nil {
			return err
		}
	}
	return nil
}

// allowed reports whether p is allowed already, to whomever it is for.
func (g *grant) allowed(p policy.Pattern) bool {
	return !slices.ContainsFunc(g.sandboxes, func(name string) bool {
		return reachOf(g.before, p, name).refused > 0
	})
}

// judge refuses a line that changes nothing, and warns of what it leaves shut
// and of what else it opens.
func (g *grant) judge(p policy.Pattern) error {
	changes := false
	var shut reach
	for _, name := range g.sandboxes {
		now := reachOf(g.after, p, name)
		changes = changes || now.allowed > reachOf(g.before, p, name).allowed
		if now.refused > 0 {
			g.warn("%s stays refused%s: %s", now.first, g.to(name), now.whyText())
			shut = now
		}
	}
	if !changes {
		return cli.Failed(fmt.Errorf("%s would stay refused%s, so nothing was written: %s", shut.first, g.to(shut.sandbox), shut.whyText()), g.wayOut(shut))
	}
	if sharing := p.Sharing(); sharing != "" {
		g.warn("%s %s", p, sharing)
	}
	if policy.InSpecialSpace(p) {
		g.warn("%s is not public: the line is an exception to the baseline for just that", p)
	}
	return nil
}

// to names a sandbox where there are several.
func (g *grant) to(name string) string {
	if len(g.config.File.Sandboxes) == 0 {
		return ""
	}
	return " to sandbox " + name
}

// wayOut is what to type where a new line does not open what it names.
func (g *grant) wayOut(r reach) string {
	switch {
	case r.why.Layer == policy.PerSandbox && r.why.Class == policy.DefaultDeny:
		return "write it under allow of sandbox " + r.sandbox + " in " + g.path + ", if it is meant to pass"
	case r.why.Layer == policy.Organisation && g.config.Organisation != nil:
		return "ask who keeps " + g.config.Organisation.Path + ", which decides this"
	case r.why.Rule == "ceiling":
		return "write it under ceiling in " + g.path + " too, if it is meant to pass"
	case r.why.Class == policy.AddressDenied:
		return "egressd check " + cli.PatternWord(r.first)
	default:
		return "change rule " + r.why.Rule + " in " + g.path + ", if it is meant to pass"
	}
}

// A reach is how much of a pattern one sandbox may reach by a policy.
type reach struct {
	sandbox          string
	allowed, refused int // of its samples
	first            string
	why              policy.Decision // about the first that is refused
}

func reachOf(p *policy.Policy, pattern policy.Pattern, name string) reach {
	r := reach{sandbox: name}
	for dst := range pattern.Samples() {
		d := p.Decide(context.Background(), &policy.Request{
			Sandbox: policy.Sandbox{Name: name}, Via: policy.ViaConnect, Destination: dst, Usage: new(policy.Usage),
		})
		if d.Verdict.Action() == "allow" {
			r.allowed++
			continue
		}
		if r.refused == 0 {
			r.first, r.why = dst.String(), d
		}
		r.refused++
	}
	return r
}

// whyText names the rule, also where its reason does not.
func (r *reach) whyText() string {
	if r.why.Class == policy.DefaultDeny || r.why.Class == policy.AddressDenied || strings.Contains(r.why.Reason, r.why.Rule) {
		return r.why.Reason
	}
	return "rule " + r.why.Rule + ": " + r.why.Reason
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

// write replaces the file and says what follows.
func (g *grant) write(stderr io.Writer) error {
	fmt.Fprint(stderr, cli.UnifiedDiff(g.path, g.path, string(g.old), string(g.text)))
	target, err := config.ReplaceFile(g.path, g.old, g.text)
	if err != nil {
		return cli.Failed(fmt.Errorf("write policy: %w", err), "the same again, as a user who may write in "+filepath.Dir(g.path))
	}
	fmt.Fprintf(stderr, "egressd: wrote %s\n", cli.Printable(target))
	folder, err := filepath.EvalSymlinks(filepath.Dir(g.path))
	if err != nil || folder != filepath.Dir(target) {
		fmt.Fprintf(stderr, "egressd: hint: send SIGHUP to egressd serve, which watches %s and not where that link leads\n", cli.Printable(filepath.Dir(g.path)))
		return nil
	}
	fmt.Fprintln(stderr, "egressd: hint: egressd serve reads the file again by itself")
	return nil
}
