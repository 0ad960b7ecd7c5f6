package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/config"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

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
