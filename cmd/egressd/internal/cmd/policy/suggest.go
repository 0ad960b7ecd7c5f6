package policy

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config/edit"
	"github.com/egressd/egressd/config/explain"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/spf13/cobra"
)

func newSuggest(f *policyFlags) *cobra.Command {
	var o suggestOptions
	cmd := &cobra.Command{
		Use:   "suggest [FILTER…]",
		Short: "Propose rules from what the log has",
		Long: `Suggest reads what passed only because no rule is about it (mode: observe, run --learn),
and prints lines for a policy: each host with its port, or the methods and paths where
egressd saw the requests, with matching tests. The policy file does not allow them yet.

Filters are those of egressd log. With verdict:deny, suggest proposes what was denied
because no rule allows it, the most tried first; with verdict:allow or rule:NAME, what
the rules allowed. --run all reads the logs of all runs, and says how many of the last
ones brought nothing new.

The lines are a draft. A request is not right because a program made it: delete
lines that you cannot explain. Suggest proposes no private addresses and no wildcards.

--apply writes the lines and the tests into the policy file, and shows the change and
what it opens. Lines in comments are left out. If all requests came from one sandbox of
the file, the lines are for that one alone.`,
		Example: `  egressd run --learn -- npm ci
  egressd policy suggest --run last
  egressd policy suggest verdict:deny since:1d sandbox:ci
  egressd policy suggest --run all 'host:*.example.com' --apply`,
		RunE: func(cmd *cobra.Command, words []string) error {
			o.Config, o.json = f.config, f.json
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), words)
		},
	}
	cli.RunFlags(cmd, &o.Source)
	cli.FilterFlags(cmd, &o.Source)
	cmd.Flags().BoolVar(&o.apply, "apply", false, "write the lines and the tests into the policy file")
	return cmd
}

type suggestOptions struct {
	source.Source
	json, apply bool
}

func (o *suggestOptions) run(ctx context.Context, stdout, stderr io.Writer, words []string) error {
	learned := logs.Learned{Of: lessonOf(words)}
	where, err := o.collect(&learned, words)
	if err != nil {
		return err
	}
	s, err := newSuggestion(&learned)
	if err != nil {
		return err
	}
	if len(s.all)+len(s.floods) == 0 {
		next := "egressd run --learn -- COMMAND, then egressd policy suggest --run last; or egressd policy suggest verdict:deny, for what was denied"
		if learned.Of != logs.Observed {
			next = "egressd log verdict:deny, which also has what no rule can allow"
		}
		return hint.Failed(fmt.Errorf("nothing was %s in %s", lessonWords[learned.Of], where), next)
	}
	if learned.Beyond > 0 {
		fmt.Fprintf(stderr, "egressd: warning: %s more, to destinations that are too many, not one host, or that no policy opens, are left out\n", quantity.Plural(int(learned.Beyond), "request"))
	}
	for _, c := range s.floods {
		fmt.Fprintf(stderr, "egressd: warning: %s\n", c.Text())
	}
	sayNothingNew(stderr, &learned)
	a, err := s.addition(o.PolicyFile(), o.apply)
	if o.apply {
		if err != nil {
			return err
		}
		return o.write(ctx, stdout, stderr, s, a)
	}
	if err != nil {
		fmt.Fprintf(stderr, "egressd: warning: these lines cannot be added as they are: %v\n", err)
	} else if n := s.dropKnown(a); n > 0 {
		fmt.Fprintf(stderr, "egressd: %s allows %d of %s already\n", printable.Text(a.Path), n, quantity.Plural(n+len(s.all), "destination"))
	}
	out := bufio.NewWriter(stdout)
	if len(s.all)+len(s.floods) == 0 {
		return nil
	}
	if o.json {
		for _, one := range s.all {
			if err := cli.PrintJSON(out, viewOfLearned(one, s.presets[one])); err != nil {
				return err
			}
		}
		err = out.Flush()
	} else {
		err = errors.Join(s.print(out), out.Flush())
	}
	if a != nil && len(a.Added) > 0 {
		fmt.Fprintf(stderr, "egressd: with these lines, %s %s\n", printable.Text(a.Path), printable.Text(explain.Told(ctx, a.Sides(), a.Near()...)))
	}
	return err
}

// lessonOf returns what the words of a filter are about.
func lessonOf(words []string) logs.Lesson {
	for _, word := range words {
		switch key, value, _ := strings.Cut(word, ":"); {
		case key == "verdict" && value == "deny", key == "class":
			return logs.DeniedRequests
		case key == "verdict" && value == "allow", key == "rule" && value != policy.LearnRule:
			return logs.Allowed
		}
	}
	return logs.Observed
}

var lessonWords = map[logs.Lesson]string{logs.Observed: "learned", logs.DeniedRequests: "denied for want of a rule", logs.Allowed: "allowed"}

// collect reads the log that the words name. For all runs, it reads each log, the oldest first.
func (o *suggestOptions) collect(learned *logs.Learned, words []string) (where string, err error) {
	f, err := source.ParseFilter(words, time.Now())
	if err != nil {
		return "", err
	}
	if cmp.Or(o.Run, f.Run) != source.AllRuns {
		return o.collectOne(learned, words)
	}
	words = slices.DeleteFunc(slices.Clone(words), func(word string) bool { return word == "run:"+source.AllRuns })
	for _, id := range slices.Backward(o.Runs()) {
		one := *o
		one.Run = id
		_, err := one.collectOne(learned, words)
		if none, ok := errors.AsType[*source.NoLogError](err); ok && none != nil {
			continue
		}
		if err != nil {
			return "", err
		}
	}
	return "the logs of all runs", nil
}

func (o *suggestOptions) collectOne(learned *logs.Learned, words []string) (where string, err error) {
	log, f, err := o.Ask(words)
	if err != nil {
		return "", err
	}
	defer log.Close()
	learned.NextLog()
	return log.Dir, log.Decisions(f, learned.Add)
}

// sayNothingNew says since when the log, or how many of several logs, brought nothing new.
func sayNothingNew(w io.Writer, learned *logs.Learned) {
	if n := learned.NothingNew(); n > 0 {
		fmt.Fprintf(w, "egressd: the last %s brought nothing new\n", quantity.Plural(n, "run"))
		return
	}
	if n, since := learned.Quiet(); n > 0 {
		fmt.Fprintf(w, "egressd: nothing new came since %s, in %s\n", quantity.Clock(since, time.Now()), quantity.Plural(int(n), "request"))
	}
}

// A suggestion is what may be written into a policy file.
type suggestion struct {
	of      logs.Lesson
	all     []*logs.LearnedDestination // by registrable domain
	floods  []*logs.NameFlood
	presets map[*logs.LearnedDestination]string
	denies  []string // tests of what stays denied
}

func newSuggestion(learned *logs.Learned) (*suggestion, error) {
	s := &suggestion{of: learned.Of}
	s.all, s.floods = learned.All()
	logs.ByDomain(s.all)
	var err error
	s.presets, err = presetsOf(s.all)
	return s, err
}

// isDraft reports whether a destination is proposed in a comment: it was never reached, or a canary was sent to it.
func (s *suggestion) isDraft(l *logs.LearnedDestination) bool {
	return l.Alarm || l.Reached == 0 && s.of != logs.DeniedRequests
}

// addition judges the lines beside a policy file, and finds the tests of what stays denied. alone asks for the requests of
// one sandbox, if the file lists several.
func (s *suggestion) addition(path string, alone bool) (*edit.Addition, error) {
	a, err := edit.New(path, "allow")
	if err != nil {
		return nil, err
	}
	var lines []policy.Opening
	var who []string
	for _, l := range s.all {
		if !s.isDraft(l) {
			lines = append(lines, l.Openings()...)
			who = append(who, l.Sandboxes...)
		}
	}
	slices.Sort(who)
	who = slices.Compact(who)
	switch {
	case len(who) == 1 && a.Config.EntryFor(who[0]) != nil:
		a.For(who[0])
	case len(who) > 1 && len(a.Config.File.Sandboxes) > 1 && alone:
		return nil, hint.Failed(fmt.Errorf("these requests are of %d sandboxes (%s), and lines for all of them would open to each what the others need", len(who), strings.Join(who, ", ")),
			"egressd policy suggest sandbox:"+shell.Word(who[0])+" --apply, for one after the other")
	}
	if err := a.Add(lines); err != nil {
		return nil, err
	}
	if len(a.Added) > 0 && a.Only() == "" {
		_, after := a.After()
		s.denies = staysDenied(context.Background(), after, a.Added)
	}
	return a, nil
}

// dropKnown leaves out what the policy file allows already, and returns how many destinations that are. A filter for
// what the rules allowed asks for just these destinations, so nothing is left out then.
func (s *suggestion) dropKnown(a *edit.Addition) int {
	before := len(s.all)
	s.all = slices.DeleteFunc(s.all, func(l *logs.LearnedDestination) bool {
		return s.of != logs.Allowed && !s.isDraft(l) && !slices.ContainsFunc(l.Openings(), func(o policy.Opening) bool { return !slices.Contains(a.Already, o) })
	})
	return before - len(s.all)
}

// maxDenies bounds the tests of what stays denied.
const maxDenies = 20

// staysDenied returns tests about requests beside the lines that p denies: another port, another method, and another path.
func staysDenied(ctx context.Context, p *policy.Policy, lines []policy.Opening) (tests []string) {
	p = p.AsWritten()
	add := func(o policy.Opening) {
		text := testOf("deny", o)
		r, err := file.ParseCheck(strings.TrimPrefix(text, "deny "))
		if err != nil || len(tests) >= maxDenies || slices.Contains(tests, text) {
			return
		}
		r.Usage = new(policy.Usage)
		if d, _ := p.Judge(ctx, r); d.Verdict == policy.Deny && d.Class != policy.PolicyError {
			tests = append(tests, text)
		}
	}
	for _, o := range lines {
		if !o.Conditional() {
			add(policy.Opening{Pattern: o.Pattern.At(otherPort(lines, o.Pattern))})
			continue
		}
		other := o
		if other.Method = "POST"; o.Method == "POST" {
			other.Method = "DELETE"
		}
		add(other)
		if o.Path != "" {
			other = o
			other.Path = "/another" + strings.TrimSuffix(o.Path, "/**")
			add(other)
		}
	}
	return tests
}

// otherPort is one at which no line opens the host of p.
func otherPort(lines []policy.Opening, p policy.Pattern) uint16 {
	for _, port := range []uint16{22, 8443, 8080} {
		if !slices.ContainsFunc(lines, func(o policy.Opening) bool { return o.Pattern == p.At(port) }) {
			return port
		}
	}
	return 1
}

// testOf is the line of "tests" about requests that o opens.
func testOf(verdict string, o policy.Opening) string {
	if !o.Conditional() {
		return verdict + " " + o.Pattern.String()
	}
	scheme, host := "https", o.Pattern.String()
	switch {
	case o.Pattern.HasPort(80):
		scheme, host = "http", strings.TrimSuffix(host, ":80")
	case o.Pattern.HasPort(443):
		host = strings.TrimSuffix(host, ":443")
	}
	return verdict + " " + cmp.Or(o.Method, "GET") + " " + scheme + "://" + host + cmp.Or(strings.NewReplacer("**", "x").Replace(o.Path), "/")
}

// write adds the lines and the tests to the policy file.
func (o *suggestOptions) write(ctx context.Context, stdout, stderr io.Writer, s *suggestion, a *edit.Addition) error {
	for _, w := range a.Warnings {
		fmt.Fprintf(stderr, "egressd: warning: %s\n", printable.Text(w))
	}
	done := appliedView{Path: a.Path, Added: []string{}, Tests: []string{}, Warnings: a.Warnings}
	if len(a.Added) == 0 {
		fmt.Fprintf(stderr, "egressd: %s allows all of it already\n", printable.Text(a.Path))
	} else {
		if tests := s.tests(a); a.Only() == "" && len(tests) > 0 {
			if err := a.AddTests(tests); err != nil {
				return err
			}
			done.Tests = tests
		}
		for _, line := range a.Added {
			done.Added = append(done.Added, line.String())
		}
		done.Opens = explain.Told(ctx, a.Sides(), a.Near()...)
		fmt.Fprint(stderr, a.Diff())
		fmt.Fprintf(stderr, "egressd: that %s\n", printable.Text(done.Opens))
		target, _, err := a.Write()
		if err != nil {
			return err
		}
		fmt.Fprintf(stderr, "egressd: wrote %s\n", printable.Text(target))
		if done.Written = true; len(a.Config.File.Observing()) > 0 {
			fmt.Fprintf(stderr, "egressd: hint: take mode: observe out of %s to enforce it\n", printable.Text(a.Path))
		}
	}
	if done.Policy = a.Digest(); o.json {
		return cli.PrintJSON(stdout, done)
	}
	return nil
}

// An appliedView is the JSON output of --apply.
type appliedView struct {
	Path     string   `json:"path"`
	Written  bool     `json:"written"`
	Added    []string `json:"added"`
	Tests    []string `json:"tests"`
	Opens    string   `json:"opens,omitempty"` // and closes, in words
	Warnings []string `json:"warnings,omitempty"`
	Policy   string   `json:"policy"` // digest of what the file says now
}

// tests returns tests both ways about the lines that the file lacks.
func (s *suggestion) tests(a *edit.Addition) (tests []string) {
	for _, o := range a.Added {
		tests = append(tests, testOf("allow", o))
	}
	tests = slices.Compact(append(tests, s.denies...))
	return slices.DeleteFunc(tests, func(test string) bool {
		return slices.ContainsFunc(a.Config.File.Tests, func(known file.Test) bool { return known.Text == test })
	})
}
