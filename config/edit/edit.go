// Package edit adds lines to the lists allow, deny and ask of a policy file, or takes one out, and judges what that
// changes before anything is written.
package edit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/sandbox"
	"github.com/rogpeppe/go-internal/diff"
)

// An Addition is lines for one list of a policy file. [Addition.Add] judges them; [Addition.Write] puts
// them into the file. A line to deny or to ask takes the place of plain lines that could not decide beside it.
// After [Addition.TakeOut] it is the file without a line instead.
type Addition struct {
	Path     string // of the policy file
	Added    []policy.Opening
	Already  []policy.Opening // what the policy allows or denies without a new line
	Warnings []string
	Config   *config.Config // of the file as it is

	fresh         bool   // there is no policy file, and old allows nothing
	verdict       string // allow, deny or ask, which is also the name of the list
	taken         *policy.Rule
	old, text     []byte // the file as it is, and with the new lines
	before, after *policy.Policy
	saved         *config.Config // of text
	sandboxes     []string       // for which the lines are judged
	only          string         // the one sandbox that the lines are meant for, or its template, or empty
	asker         string         // the same, never a template
	own           bool           // only has a list of its own, which gets the lines
	shared        bool           // the lines stand in the list of all sandboxes
	alone         bool           // only is one sandbox of several, and a line that the file lacks goes to its list also_allow
}

// Digest returns the digest of the policy that the file has after [Addition.Write].
func (a *Addition) Digest() string {
	if a.Changes() {
		return a.after.Digest()
	}
	return a.before.Digest()
}

// Changes reports whether the file gets another text.
func (a *Addition) Changes() bool { return len(a.Added) > 0 || a.taken != nil }

// Texts returns the file as it is, and with the new lines.
func (a *Addition) Texts() (before, after string) { return string(a.old), string(a.text) }

// Diff returns the change of the file in the unified format.
func (a *Addition) Diff() string { return UnifiedDiff(a.Path, a.Path, string(a.old), string(a.text)) }

// After returns the configuration and the policy of the file with the new lines. It needs [Addition.Changes].
func (a *Addition) After() (*config.Config, *policy.Policy) { return a.saved, a.after }

// Before returns the policy of the file as it is.
func (a *Addition) Before() (*config.Config, *policy.Policy) { return a.Config, a.before }

// Sides are the policies before and after the new lines, to compare them. It needs [Addition.Changes].
func (a *Addition) Sides() policy.Sides {
	s := policy.Sides{Old: a.before, New: a.after}
	for _, c := range []*config.Config{a.Config, a.saved} {
		s.Sandboxes = c.AddSandboxes(s.Sandboxes)
	}
	return s
}

// Near are the hosts of the new lines, or of the line that was taken out.
func (a *Addition) Near() (all []policy.Pattern) {
	if a.taken != nil {
		all = append(all, a.taken.Pattern)
	}
	for _, o := range a.Added {
		all = append(all, o.Pattern)
	}
	return all
}

// Fresh reports whether there is no policy file yet: [Addition.Write] makes one of the new lines alone.
func (a *Addition) Fresh() bool { return a.fresh }

// New reads the policy file at path, or the usual one if path is empty. If no usual one exists, it begins with a policy
// that allows nothing. It takes a list without a value, which serve refuses, for an empty list, because the new lines give
// it a value.
func New(path, verdict string) (*Addition, error) {
	path, err := config.Find(path)
	a := &Addition{verdict: verdict, Path: path}
	var none *config.NotFoundError
	switch a.fresh = errors.As(err, &none); {
	case a.fresh:
		path, a.old, err = config.SearchPath()[0], config.Blank(), nil
		a.Path = path
	case err != nil:
		return nil, err
	default:
		a.old, err = config.Read(path)
	}
	if err != nil {
		return nil, hint.Misused(fmt.Errorf("read policy: %w", err), config.Beginning(path, err))
	}
	text, err := a.listedIn(a.old)
	if err != nil {
		return nil, hint.Misused(err, "correct "+path+", then egressd check URL")
	}
	if a.Config, a.before, err = compileText(path, text); err != nil {
		return nil, err
	}
	for _, s := range a.Config.File.Sandboxes {
		a.sandboxes = append(a.sandboxes, s.Name)
	}
	if len(a.sandboxes) == 0 {
		a.sandboxes = []string{sandbox.Default}
	}
	return a, nil
}

// compileText compiles a file as it decides when it observes nothing: a line that is missing is missing, although its requests
// pass for now.
func compileText(path string, text []byte) (*config.Config, *policy.Policy, error) {
	c, err := config.New(path, text, config.OrganisationPath)
	if err != nil {
		return nil, nil, err
	}
	p, err := c.Compile()
	if err != nil {
		return nil, nil, err
	}
	return c, p.Enforced(), nil
}

func (a *Addition) warn(format string, arguments ...any) {
	a.Warnings = append(a.Warnings, fmt.Sprintf(format, arguments...))
}

func (a *Addition) listedIn(text []byte, lines ...policy.Opening) ([]byte, error) {
	switch a.verdict {
	case "allow":
		return file.AllowText(a.Path, text, lines...)
	case "ask":
		return file.AskText(a.Path, text, lines...)
	}
	var patterns []policy.Pattern
	for _, o := range lines {
		patterns = append(patterns, o.Pattern)
	}
	return file.DenyText(a.Path, text, patterns...)
}

// reach returns how much of o a sandbox may reach by a policy.
func (a *Addition) reach(by *policy.Policy, o policy.Opening, name string) policy.Reach {
	return by.Reach(context.Background(), o, policy.Sandbox{Name: name})
}

// Add puts the lines into the text, compiles the result with its tests, and judges each new line. It
// returns an error if the file does not compile, if a line never decides or changes nothing, or if a host to deny stays
// open. Lines to deny are about all requests.
func (a *Addition) Add(lines []policy.Opening) error {
	for _, o := range lines {
		if a.Says(o) {
			a.Already = append(a.Already, o)
		} else {
			a.Added = append(a.Added, o)
		}
	}
	if len(a.Added) > 0 {
		a.warnOfOthers()
		if err := a.put(); err != nil {
			return err
		}
	} else {
		a.after = a.before
	}
	switch a.verdict {
	case "deny":
		return a.judgeDenies(lines)
	case "ask":
		return a.judgeAsks(lines)
	}
	for _, o := range a.Added {
		if err := a.judge(o); err != nil {
			return err
		}
	}
	return nil
}

// AddTests adds lines to the list of tests, and compiles the result. It needs [Addition.Added].
func (a *Addition) AddTests(tests []string) error {
	text, err := file.TestsText(a.Path, a.text, tests...)
	if err != nil {
		return hint.Failed(err, "write the tests into "+a.Path)
	}
	saved, after, err := compileText(a.Path, text)
	if err != nil {
		return hint.Failed(fmt.Errorf("with the tests, the file would be refused, so nothing was written\n%w", err), "egressd policy suggest, without --apply")
	}
	a.text, a.saved, a.after = text, saved, after
	return nil
}

// Only returns the sandbox, or the template, that the lines are meant for alone. It is empty if they are for everybody.
func (a *Addition) Only() string { return a.only }

// Shared reports whether the new lines stand in the list of all sandboxes, and not in that of one.
func (a *Addition) Shared() bool { return a.shared }

// put makes the text with the new lines, and compiles it.
func (a *Addition) put() (err error) {
	old, err := a.apart(a.old)
	if err != nil {
		return err
	}
	text := old
	if a.own {
		if text, err = file.AllowOwnText(a.Path, old, a.only, a.missing()...); err != nil {
			return hint.Failed(err, "write it under allow of sandbox "+a.only+" in "+a.Path)
		}
		if a.saved, a.after, err = compileText(a.Path, text); err == nil && a.opened() {
			a.text = text
			return nil
		}
	}
	if a.alone {
		also, err := file.AlsoAllowText(a.Path, old, a.only, a.Added...)
		if err != nil {
			return hint.Failed(err, "write it under also_allow of sandbox "+a.only+" in "+a.Path)
		}
		if a.saved, a.after, err = compileText(a.Path, also); err == nil && a.opened() {
			a.text = also
			return nil
		}
	}
	a.shared = true
	if a.text, err = a.listedIn(text, a.Added...); err != nil {
		return hint.Failed(err, "egressd check HOST, after the edit")
	}
	if a.saved, a.after, err = compileText(a.Path, a.text); err != nil {
		return hint.Failed(fmt.Errorf("with that, the file would be refused, so nothing was written\n%w", err), "where it is a test that no longer holds, change it in "+a.Path+" first")
	}
	return a.opensOthers()
}

// opensOthers returns an error if lines that are meant for one sandbox open something to another one.
func (a *Addition) opensOthers() error {
	if a.only == "" || a.verdict != "allow" {
		return nil
	}
	for _, s := range a.Config.File.Sandboxes {
		for _, o := range a.Added {
			if s.Name == a.only || a.reach(a.after, o, s.Name).Allowed <= a.reach(a.before, o, s.Name).Allowed {
				continue
			}
			next := "egressd allow " + shell.Pattern(o.Pattern.String()) + " --sandbox " + shell.Word(a.asker) + ", which is for a while; or egressd allow " + shell.Pattern(o.Pattern.String()) + " --save, for all of them; or first a list allow of its own for sandbox " + s.Name
			return hint.Failed(fmt.Errorf("that line would open %s to sandbox %s, too, so nothing was written", o, s.Name), next)
		}
	}
	return nil
}

// apart returns the text without the lines that a new deny hides, and an error if other lines would hide a new one.
func (a *Addition) apart(text []byte) ([]byte, error) {
	lists, list := a.lists()
	for _, o := range a.Added {
		*list = append(*list, o.Line(""))
	}
	hidden := lists.Hidden()
	slices.SortStableFunc(hidden, func(x, y policy.Idle) int { // the last first, so that the places before stay
		return cmp.Or(cmp.Compare(y.Rule.At.Line, x.Rule.At.Line), cmp.Compare(y.Rule.At.Column, x.Rule.At.Column))
	})
	for _, idle := range hidden {
		by := idle.By[0]
		switch new := idle.Rule.ID == ""; {
		case new:
			return nil, hint.Failed(fmt.Errorf("%s would stay refused, so nothing was written: rule %s in line %d decides, and the new line never would", idle.Rule.Pattern, by.ID, by.At.Line), a.changing(by.ID))
		case a.verdict == "allow" || by.ID != "":
		case !idle.Rule.Plain(), idle.Rule.Conditional():
			return nil, hint.Failed(fmt.Errorf("rule %s in line %d says more about %s than its host, so nothing was written", idle.Rule.ID, idle.Rule.At.Line, idle.Rule.Pattern), "remove that line from "+a.Path+", then the same again")
		default:
			without, ok := file.RemoveText(a.Path, text, idle.Rule.At)
			if !ok {
				return nil, hint.Failed(fmt.Errorf("rule %s in line %d is written so that it cannot be taken out, so nothing was written", idle.Rule.ID, idle.Rule.At.Line), "remove that line from "+a.Path+", then the same again")
			}
			text = without
			a.warn("rule %s in line %d could not decide beside that, and is taken out", idle.Rule.ID, idle.Rule.At.Line)
		}
	}
	return text, nil
}

func (a *Addition) changing(rule string) string {
	return "change rule " + rule + " in " + a.Path + ", if it is meant to pass"
}

// lists returns a copy of the rules among which the new lines will stand, and the list that gets them.
func (a *Addition) lists() (all *policy.Lists, into *[]policy.Rule) {
	f := a.Config.File
	all = &policy.Lists{Allow: slices.Clone(f.Allow), Deny: slices.Clone(f.Deny), Ask: slices.Clone(f.Ask), UnsafeAllow: f.UnsafeAllow}
	if i := slices.IndexFunc(f.Sandboxes, func(s file.SandboxRules) bool { return a.own && s.Name == a.only }); i >= 0 {
		all = &policy.Lists{Allow: slices.Clone(f.Sandboxes[i].Allow), Deny: f.Sandboxes[i].Deny}
	}
	switch a.verdict {
	case "deny":
		return all, &all.Deny
	case "ask":
		return all, &all.Ask
	}
	return all, &all.Allow
}

// warnOfOthers says which other sandboxes the new lines are for, too.
func (a *Addition) warnOfOthers() {
	if a.asker != a.only {
		a.warn("the line is for every sandbox of %s, not for %s alone", a.only, a.asker)
	}
}

// missing returns the new lines that the sandbox's own list does not have.
func (a *Addition) missing() (all []policy.Opening) {
	i := slices.IndexFunc(a.Config.File.Sandboxes, func(s file.SandboxRules) bool { return s.Name == a.only })
	for _, o := range a.Added {
		if !slices.ContainsFunc(a.Config.File.Sandboxes[i].Allow, o.IsLine) {
			all = append(all, o)
		}
	}
	return all
}

// opened reports whether the new policy opens all new lines to the sandbox that they are meant for.
func (a *Addition) opened() bool {
	return !slices.ContainsFunc(a.Added, func(o policy.Opening) bool {
		return !a.after.OpensAll(context.Background(), o, policy.Sandbox{Name: a.only})
	})
}

// Says reports whether o needs no new line: every sandbox may reach it already, or a line denies exactly that.
func (a *Addition) Says(o policy.Opening) bool {
	switch a.verdict {
	case "deny":
		return slices.ContainsFunc(a.Config.File.Deny, o.IsLine)
	case "ask":
		return slices.ContainsFunc(a.Config.File.Ask, o.IsLine)
	}
	return !slices.ContainsFunc(a.sandboxes, func(name string) bool {
		return !a.before.OpensAll(context.Background(), o, policy.Sandbox{Name: name})
	})
}

// judge returns an error if an allow line opens nothing. It warns of parts of o that stay refused, and of a
// line that opens more than it seems to.
func (a *Addition) judge(o policy.Opening) error {
	changes := false
	var shut, partly policy.Reach
	for _, name := range a.sandboxes {
		now, before := a.reach(a.after, o, name), a.reach(a.before, o, name)
		changes = changes || now.Allowed > before.Allowed || now.Partly < before.Partly
		if now.Refused > 0 {
			a.warn("%s stays refused%s: %s", now.Shut, a.to(name), now.Why.Text())
			shut = now
		}
		if now.Partly > 0 {
			partly = now
		}
	}
	if !changes && shut.Shut == "" {
		return hint.Failed(fmt.Errorf("of %s, some requests would stay refused%s, so nothing was written: %s", partly.Open, a.to(partly.Sandbox), partly.By.Text()), "change rule "+partly.By.Rule+", if more is meant to pass")
	}
	if !changes {
		return hint.Failed(fmt.Errorf("%s would stay refused%s, so nothing was written: %s", shut.Shut, a.to(shut.Sandbox), shut.Why.Text()), a.wayOut(&shut))
	}
	if sharing := o.Pattern.Sharing(); sharing != "" {
		a.warn("%s %s", o.Pattern, sharing)
	}
	if policy.InSpecialSpace(o.Pattern) {
		a.warn("%s is not public: the line is an exception to the baseline for just that", o)
	}
	return nil
}

// judgeAsks returns an error if a person would be asked about nothing of a line.
func (a *Addition) judgeAsks(lines []policy.Opening) error {
	for _, o := range lines {
		var shut policy.Reach
		asked := false
		for _, name := range a.sandboxes {
			now := a.reach(a.after, o, name)
			if now.Asked != "" {
				asked = true
			} else {
				shut = now
			}
		}
		if !asked {
			return hint.Failed(fmt.Errorf("%s would stay refused%s, so nothing was written: %s", shut.Shut, a.to(shut.Sandbox), shut.Why.Text()), a.wayOut(&shut))
		}
	}
	return nil
}

// LinesAbout returns the lines of the file that are about just p, or about its host at every port, in the order in which they
// stand.
func (a *Addition) LinesAbout(p policy.Pattern) (all []policy.Rule) {
	f := a.Config.File
	lists := [][]policy.Rule{f.Allow, f.Deny, f.Ask}
	for i := range f.Sandboxes {
		lists = append(lists, f.Sandboxes[i].Allow, f.Sandboxes[i].AlsoAllow, f.Sandboxes[i].Deny)
	}
	for _, list := range lists {
		for _, r := range list {
			if r.Pattern == p || p.OneHost() && r.Pattern.OneHost() && r.Pattern.Host() == p.Host() && p.PortsIn([]policy.Pattern{r.Pattern}) {
				all = append(all, r)
			}
		}
	}
	slices.SortStableFunc(all, func(x, y policy.Rule) int { return cmp.Compare(x.At.Line, y.At.Line) })
	return all
}

// TakeOut takes a line of [Addition.LinesAbout] out of the text, and compiles the result with its tests.
func (a *Addition) TakeOut(r policy.Rule) error {
	without, ok := file.RemoveText(a.Path, a.old, r.At)
	if !ok {
		return hint.Failed(fmt.Errorf("line %d is written so that it cannot be taken out, so nothing was written", r.At.Line), "remove that line from "+a.Path)
	}
	var err error
	if a.saved, a.after, err = compileText(a.Path, without); err != nil {
		return hint.Failed(fmt.Errorf("without that, the file would be refused, so nothing was written\n%w", err), "where it is a test that no longer holds, change it in "+a.Path+" first")
	}
	a.text, a.taken = without, &r
	return nil
}

// judgeDenies returns an error if a line leaves something of its pattern allowed.
func (a *Addition) judgeDenies(lines []policy.Opening) error {
	for _, o := range lines {
		for _, name := range a.sandboxes {
			if now := a.reach(a.after, o, name); now.Allowed > 0 {
				return a.staysAllowed(now.Open, name, now.By.Rule)
			}
		}
		if o.Pattern.OneHost() {
			continue
		}
		if rule, p := a.closer(o.Pattern.AnyPort()); rule != "" {
			return a.staysAllowed(p.String(), "", rule)
		}
	}
	return nil
}

func (a *Addition) staysAllowed(what, name, rule string) error {
	to := ""
	if name != "" {
		to = a.to(name)
	}
	return hint.Failed(fmt.Errorf("%s would stay allowed%s by rule %s, so nothing was written", what, to, rule), "remove rule "+rule+" from "+a.Path+", then the same again; or egressd deny HOST, for a while")
}

// closer returns a rule that allows some of p because it names the host more closely.
func (a *Addition) closer(p policy.Pattern) (rule string, q policy.Pattern) {
	opens := func(q policy.Pattern) bool {
		return holds(p, q) && slices.ContainsFunc(a.sandboxes, func(name string) bool {
			opens, _ := a.after.Opens(context.Background(), policy.Opening{Pattern: q}, policy.Sandbox{Name: name})
			return opens
		})
	}
	for _, r := range a.Config.File.Allow {
		if opens(r.Pattern) {
			return r.ID, r.Pattern
		}
	}
	for _, l := range a.Config.HostLists {
		for line, q := range l.Hosts.All() {
			if l.Effect == policy.Allow && opens(q) {
				return fmt.Sprintf("%s:%d", l.ID, line), q
			}
		}
	}
	return "", q
}

func holds(p, q policy.Pattern) bool {
	for dst := range q.Samples() {
		if dst.Addr.IsValid() && p.MatchesAddr(dst.Addr, dst.Port) || !dst.Addr.IsValid() && p.MatchesName(dst.Host, dst.Port) {
			return true
		}
	}
	return false
}

// For judges the lines for one sandbox, such as the one that was refused. For a sandbox of a template, the lines are judged
// for the template. A sandbox with a list of its own gets the lines there. If the file denies them as well, its list gets
// them too.
func (a *Addition) For(who string) {
	a.asker, a.only = who, who
	if s := a.Config.EntryFor(who); s != nil { // the file may no longer list it
		a.only, a.sandboxes = s.Name, []string{s.Name}
	}
	a.own = a.verdict == "allow" && a.HasOwn(a.only)
	a.alone = a.verdict == "allow" && len(a.Config.File.Sandboxes) > 1 && a.Config.EntryFor(who) != nil
}

// HasOwn reports whether the file has a list allow for the sandbox who alone, or for its template.
func (a *Addition) HasOwn(who string) bool {
	s := a.Config.EntryFor(who)
	return s != nil && s.Narrowed
}

func (a *Addition) to(name string) string {
	if len(a.Config.File.Sandboxes) == 0 {
		return ""
	}
	return " to sandbox " + name
}

// wayOut returns the hint for a new line that does not open what it names.
func (a *Addition) wayOut(r *policy.Reach) string {
	switch {
	case r.Why.Layer == policy.PerSandbox && r.Why.Class == policy.DefaultDeny:
		return a.ownList(r)
	case r.Why.Layer == policy.Organisation && a.Config.Organisation != nil:
		return "ask who keeps " + a.Config.Organisation.Path + ", which decides this"
	case r.Why.Rule == "ceiling":
		return "write it under ceiling in " + a.Path + " too, if it is meant to pass"
	case r.Why.Class == policy.AddressDenied:
		return "egressd check " + shell.Pattern(r.Shut)
	default:
		return a.changing(r.Why.Rule)
	}
}

// ownList returns the command that adds the line to the list of a sandbox.
func (a *Addition) ownList(r *policy.Reach) string {
	if !a.HasOwn(r.Sandbox) {
		return "change rego of sandbox " + r.Sandbox + " in " + a.Path + ", if it is meant to pass"
	}
	return "egressd allow " + shell.Pattern(r.Shut) + " --save --sandbox " + shell.Word(r.Sandbox)
}

// Write replaces the file, and returns the path of the file that it wrote: links are followed. watched is
// false if a symbolic link leads to another folder, which egressd serve does not watch.
func (a *Addition) Write() (target string, watched bool, err error) {
	if a.fresh {
		err = config.CreateFile(a.Path, a.text)
		target = a.Path
	} else {
		target, err = config.ReplaceFile(a.Path, a.old, a.text)
		if notes, noted := config.OpenTreePolicies(); err == nil && noted == nil {
			notes.Replaced(a.Path, []byte(a.old), []byte(a.text))
		}
	}
	if err != nil {
		return "", false, hint.Failed(fmt.Errorf("write policy: %w", err), "the same again, as a user who may write in "+filepath.Dir(a.Path))
	}
	folder, err := filepath.EvalSymlinks(filepath.Dir(a.Path))
	return target, err == nil && folder == filepath.Dir(target), nil
}

// Patterns reads the arguments of allow and deny, each once. It refuses a pattern that no command may allow.
// again returns the command line for other hosts, for hints.
func Patterns(args []string, verdict string, again func(hosts string) string) ([]policy.Pattern, error) {
	if len(args) == 0 {
		return nil, hint.Misused(fmt.Errorf("there is nothing to %s", verdict), again("example.com"))
	}
	var patterns []policy.Pattern
	for _, arg := range args {
		p, err := policy.ParsePattern(arg)
		if wrong, ok := errors.AsType[*policy.PatternError](err); ok && wrong.Hint != "" && !strings.ContainsAny(wrong.Hint, "*/") {
			return nil, hint.Misused(err, again(shell.Pattern(wrong.Hint)))
		}
		if err != nil {
			return nil, hint.Misused(err, again("example.com")+", or example.com:8443")
		}
		if verdict == "allow" {
			err = policy.CheckGrant(p)
		}
		if err != nil {
			return nil, hint.Failed(err, "egressd log verdict:deny, for the hosts that are needed")
		}
		if !slices.Contains(patterns, p) {
			patterns = append(patterns, p)
		}
	}
	return patterns, nil
}

// UnifiedDiff returns the changes from old to new in the unified format that patch(1) reads, or "" if
// there are none. A stranger may have written names and lines, so both are made printable. Tabs stay.
func UnifiedDiff(oldName, newName, old, new string) string {
	text := diff.Diff(printable.Text(oldName), []byte(old), printable.Text(newName), []byte(new))
	_, text, _ = bytes.Cut(text, []byte("\n")) // the line "diff OLD NEW"
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		for i := range cells {
			cells[i] = printable.Text(cells[i])
		}
		b.WriteString(strings.Join(cells, "\t") + "\n")
	}
	return b.String()
}
