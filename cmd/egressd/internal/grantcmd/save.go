package grantcmd

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/logcmd"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// An addition is one to a list of a policy file while it is being judged. Nothing is
// written before all of it is.
type addition struct {
	verdict   string // allow or deny, which is the list
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

// newAddition reads the policy file. A list without a value, which serve refuses,
// is taken for an empty one, since it will not be one.
func newAddition(path, verdict string) (*addition, error) {
	path, err := config.Find(path)
	if err != nil {
		return nil, err
	}
	a := &addition{verdict: verdict, path: path}
	if a.old, err = config.Read(path); err != nil {
		return nil, hint.Misused(fmt.Errorf("read policy: %w", err), "egressd init --print, for a policy to start from")
	}
	text, err := a.listed()
	if err != nil {
		return nil, hint.Misused(err, "correct "+path+", then egressd check URL")
	}
	if a.config, a.before, err = compileText(path, text); err != nil {
		return nil, err
	}
	for _, s := range a.config.File.Sandboxes {
		a.sandboxes = append(a.sandboxes, s.Name)
	}
	if len(a.sandboxes) == 0 {
		a.sandboxes = []string{sandbox.Default}
	}
	return a, nil
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

func (a *addition) warn(format string, arguments ...any) {
	a.warnings = append(a.warnings, fmt.Sprintf(format, arguments...))
}

// listed is the text with patterns behind the others.
func (a *addition) listed(patterns ...policy.Pattern) ([]byte, error) {
	if a.verdict == "deny" {
		return policy.DenyText(a.path, a.old, patterns...)
	}
	return policy.AllowText(a.path, a.old, patterns...)
}

// reach is how much of p a sandbox may reach by a policy.
func (a *addition) reach(by *policy.Policy, p policy.Pattern, name string) policy.Reach {
	return by.Reach(context.Background(), p, policy.Sandbox{Name: name})
}

// add puts the patterns that are not said already into the text, and judges
// what comes out.
func (a *addition) add(patterns []policy.Pattern) error {
	for _, p := range patterns {
		if a.isSaid(p) {
			a.already = append(a.already, p)
		} else {
			a.added = append(a.added, p)
		}
	}
	if len(a.added) == 0 {
		return nil
	}
	var err error
	if a.text, err = a.listed(a.added...); err != nil {
		return hint.Failed(err, "egressd check HOST, after the edit")
	}
	if _, a.after, err = compileText(a.path, a.text); err != nil {
		return hint.Failed(fmt.Errorf("with that, the file would be refused, so nothing was written\n%w", err), "where it is a test that no longer holds, change it in "+a.path+" first")
	}
	for _, p := range a.added {
		judge := a.judge
		if a.verdict == "deny" {
			judge = a.judgeDeny
		}
		if err := judge(p); err != nil {
			return err
		}
	}
	return nil
}

// isSaid reports whether p is allowed already, to whomever it is for, or denied by a line
// of its own.
func (a *addition) isSaid(p policy.Pattern) bool {
	if a.verdict == "deny" {
		return slices.ContainsFunc(a.config.File.Deny, func(r policy.Rule) bool { return r.Pattern == p && len(r.Methods)+len(r.Paths) == 0 })
	}
	return !slices.ContainsFunc(a.sandboxes, func(name string) bool {
		return !a.before.OpensAll(context.Background(), p, policy.Sandbox{Name: name})
	})
}

// judge refuses a line that changes nothing, and warns of what it leaves shut
// and of what else it opens.
func (a *addition) judge(p policy.Pattern) error {
	changes := false
	var shut policy.Reach
	for _, name := range a.sandboxes {
		now := a.reach(a.after, p, name)
		changes = changes || now.Allowed > a.reach(a.before, p, name).Allowed
		if now.Refused > 0 {
			a.warn("%s stays refused%s: %s", now.Shut, a.to(name), whyText(&now.Why))
			shut = now
		}
	}
	if !changes {
		return hint.Failed(fmt.Errorf("%s would stay refused%s, so nothing was written: %s", shut.Shut, a.to(shut.Sandbox), whyText(&shut.Why)), a.wayOut(&shut))
	}
	if sharing := p.Sharing(); sharing != "" {
		a.warn("%s %s", p, sharing)
	}
	if policy.InSpecialSpace(p) {
		a.warn("%s is not public: the line is an exception to the baseline for just that", p)
	}
	return nil
}

// judgeDeny refuses a line that leaves all open that it names, and warns of what it leaves.
func (a *addition) judgeDeny(p policy.Pattern) error {
	denies := false
	var open policy.Reach
	for _, name := range a.sandboxes {
		now := a.reach(a.after, p, name)
		denies = denies || now.Refused > 0
		if now.Allowed > 0 {
			a.warn("%s stays allowed%s by rule %s, which is more specific", now.Open, a.to(name), now.By.Rule)
			open = now
		}
	}
	if !denies {
		return hint.Failed(fmt.Errorf("%s would stay allowed%s by rule %s, so nothing was written", open.Open, a.to(open.Sandbox), open.By.Rule), "change rule "+open.By.Rule+" in "+a.path)
	}
	if more := a.moreSpecific(p); !p.OneHost() && more != "" {
		a.warn("what is more specific stays allowed, as by rule %s", more)
	}
	return nil
}

// moreSpecific names a rule that still allows something of p, or "".
func (a *addition) moreSpecific(p policy.Pattern) string {
	for _, r := range a.config.File.Allow {
		if holds(p, r.Pattern) && slices.ContainsFunc(a.sandboxes, func(name string) bool {
			opens, _ := a.after.Opens(context.Background(), r.Pattern, policy.Sandbox{Name: name})
			return opens
		}) {
			return r.ID
		}
	}
	return ""
}

// holds reports whether something of q is in p.
func holds(p, q policy.Pattern) bool {
	for dst := range q.Samples() {
		if dst.Addr.IsValid() && p.MatchesAddr(dst.Addr, dst.Port) || !dst.Addr.IsValid() && p.MatchesName(dst.Host, dst.Port) {
			return true
		}
	}
	return false
}

// answers has the line be judged for the sandbox that was refused.
func (a *addition) answers(s *logcmd.Story) {
	who := s.Record().Sandbox
	if len(a.config.File.Sandboxes) > 1 {
		a.warn("the line is for every sandbox of %s, not for %s alone", a.path, who)
	}
	if slices.Contains(a.sandboxes, who) { // one that is no longer listed asks as nobody
		a.sandboxes = []string{who}
	}
}

// to names a sandbox where there are several.
func (a *addition) to(name string) string {
	if len(a.config.File.Sandboxes) == 0 {
		return ""
	}
	return " to sandbox " + name
}

// wayOut is what to type where a new line does not open what it names.
func (a *addition) wayOut(r *policy.Reach) string {
	switch {
	case r.Why.Layer == policy.PerSandbox && r.Why.Class == policy.DefaultDeny:
		return "write it under allow of sandbox " + r.Sandbox + " in " + a.path + ", if it is meant to pass"
	case r.Why.Layer == policy.Organisation && a.config.Organisation != nil:
		return "ask who keeps " + a.config.Organisation.Path + ", which decides this"
	case r.Why.Rule == "ceiling":
		return "write it under ceiling in " + a.path + " too, if it is meant to pass"
	case r.Why.Class == policy.AddressDenied:
		return "egressd check " + shell.Pattern(r.Shut)
	default:
		return "change rule " + r.Why.Rule + " in " + a.path + ", if it is meant to pass"
	}
}

// whyText names the rule, also where its reason does not.
func whyText(d *policy.Decision) string {
	if d.Class == policy.DefaultDeny || d.Class == policy.AddressDenied || strings.Contains(d.Reason, d.Rule) {
		return d.Reason
	}
	return "rule " + d.Rule + ": " + d.Reason
}

// write replaces the file and says what follows.
func (a *addition) write(stderr io.Writer) error {
	fmt.Fprint(stderr, cli.UnifiedDiff(a.path, a.path, string(a.old), string(a.text)))
	target, err := config.ReplaceFile(a.path, a.old, a.text)
	if err != nil {
		return hint.Failed(fmt.Errorf("write policy: %w", err), "the same again, as a user who may write in "+filepath.Dir(a.path))
	}
	fmt.Fprintf(stderr, "egressd: wrote %s\n", printable.Text(target))
	folder, err := filepath.EvalSymlinks(filepath.Dir(a.path))
	if err != nil || folder != filepath.Dir(target) {
		fmt.Fprintf(stderr, "egressd: hint: send SIGHUP to egressd serve, which watches %s and not where that link leads\n", printable.Text(filepath.Dir(a.path)))
		return nil
	}
	fmt.Fprintln(stderr, "egressd: hint: egressd serve reads the file again by itself")
	return nil
}

// A saved is what a line in the file comes to, for a script.
type saved struct {
	Path     string    `json:"path"`
	Saved    bool      `json:"saved"`
	Added    []string  `json:"added"`
	Allowed  *[]string `json:"already_allowed,omitempty"` // of allow
	Denied   *[]string `json:"already_denied,omitempty"`  // of deny
	Warnings []string  `json:"warnings,omitempty"`
	Policy   string    `json:"policy"` // digest of what the file says now
}

// finish writes what was judged, and says so.
func (o *options) finish(a *addition, stdout, stderr io.Writer) error {
	digest := a.before.Digest()
	past := map[string]string{"allow": "allowed", "deny": "denied"}[o.verdict]
	for _, p := range a.already {
		fmt.Fprintf(stderr, "egressd: %s is %s already\n", p, past)
	}
	for _, w := range a.warnings {
		fmt.Fprintf(stderr, "egressd: warning: %s\n", printable.Text(w))
	}
	if len(a.added) > 0 {
		if err := a.write(stderr); err != nil {
			return err
		}
		digest = a.after.Digest()
	}
	if !o.json {
		return nil
	}
	done := saved{Path: a.path, Saved: len(a.added) > 0, Added: patternTexts(a.added), Warnings: a.warnings, Policy: digest}
	already := patternTexts(a.already)
	if o.verdict == "deny" {
		done.Denied = &already
	} else {
		done.Allowed = &already
	}
	return cli.PrintJSON(stdout, done)
}
