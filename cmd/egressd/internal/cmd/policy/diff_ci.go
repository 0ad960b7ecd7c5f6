package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/explain"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs/replay"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/rego"
)

// noSample is the value of --ci without a log.
const noSample = "-"

// reportMost bounds the rows of each table of a report: a job's summary has at most 1 MiB.
const reportMost = 200

// A report is what a pull request that changes a policy shows.
type report struct {
	text   strings.Builder
	failed bool
	unsure bool
}

// unknown notes a part that could not be told.
func (r *report) unknown(err error) {
	r.unsure = true
	fmt.Fprintf(&r.text, "\nThis could not be told: %s\n", cli.MarkdownWhole(err.Error()))
}

// review writes the report for the change from one policy to another.
func (o *diffOptions) review(ctx context.Context, stdout, stderr io.Writer, from, to string) error {
	if o.json {
		return hint.Misused(errors.New("--ci writes Markdown, and --json JSON"), "egressd policy diff OLD NEW --json")
	}
	var r report
	if found, ok := policyAt(to); ok {
		to = found
	}
	judged := policyOptions{config: to, above: o.above}
	r.check(&judged)
	r.test(ctx, &judged)
	next, err := loadSide(to)
	var old *config.Config
	if err == nil {
		old, err = loadSide(from)
	}
	if err == nil {
		err = r.differences(ctx, o, old, next)
	}
	if err != nil {
		r.unknown(fmt.Errorf("what it opens and closes: %w", err))
	} else if o.sample != noSample {
		r.replay(ctx, o.sample, old, next)
	}
	verdict := "nothing is wrong"
	switch {
	case r.failed:
		verdict = "it fails"
	case r.unsure:
		verdict = "it cannot be told whether something is wrong"
	}
	if _, err := fmt.Fprintf(stdout, "### Egress policy: %s\n%s", verdict, r.text.String()); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "egressd: from %s to %s: %s\n", printable.Text(cmp.Or(from, "the policy file")), printable.Text(to), verdict)
	switch {
	case r.failed:
		return cli.Status(cli.ExitFailed)
	case r.unsure:
		return cli.Status(cli.ExitUnsure)
	}
	return nil
}

// check reports what policy check finds.
func (r *report) check(o *policyOptions) {
	fmt.Fprint(&r.text, "\n**Checks**\n")
	all, err := o.checkConfig()
	if err != nil {
		r.unknown(err)
		return
	}
	if len(all) == 0 {
		fmt.Fprint(&r.text, "\nNothing found.\n")
		return
	}
	fmt.Fprint(&r.text, "\n| | where | what |\n| --- | --- | --- |\n")
	for i := range all {
		f := &all[i]
		r.failed = r.failed || f.Severity != "warning"
		if i < reportMost {
			fmt.Fprintf(&r.text, "| %s | %s | %s |\n", f.Severity, cli.MarkdownCode(fmt.Sprintf("%s:%d", f.File, f.Line)), cli.MarkdownWhole(f.Message))
		}
	}
	r.more(len(all))
}

// more says how many rows a table leaves out.
func (r *report) more(rows int) {
	if rows > reportMost {
		fmt.Fprintf(&r.text, "\n%s left out.\n", quantity.Plural(rows-reportMost, "row"))
	}
}

// test reports the tests of the policy file and of its Rego.
func (r *report) test(ctx context.Context, o *policyOptions) {
	fmt.Fprint(&r.text, "\n**Tests**\n")
	of := policyTestOptions{policyOptions: *o}
	tests, _, err := of.ofConfig(ctx)
	if err != nil {
		r.unknown(err)
		return
	}
	count := map[rego.Outcome]int{}
	for i := range tests {
		count[tests[i].Outcome]++
	}
	fmt.Fprintf(&r.text, "\n%d passed, %d failed, %d skipped.\n", count[rego.Pass], count[rego.Fail], count[rego.Skip])
	if count[rego.Fail] == 0 {
		return
	}
	r.failed = true
	fmt.Fprint(&r.text, "\n| failed | test | why |\n| --- | --- | --- |\n")
	rows := 0
	for i := range tests {
		if t := &tests[i]; t.Outcome == rego.Fail {
			if rows++; rows <= reportMost {
				fmt.Fprintf(&r.text, "| %s | %s | %s |\n", cli.MarkdownCode(fmt.Sprintf("%s:%d", t.File, t.Line)), cli.MarkdownCode(t.Name), cli.MarkdownWhole(t.Message))
			}
		}
	}
	r.more(rows)
}

// differences reports what the change opens and closes, with a request for each.
func (r *report) differences(ctx context.Context, o *diffOptions, old, next *config.Config) error {
	var within *config.Config
	if o.within != "" {
		var err error
		if within, err = loadSide(o.within); err != nil {
			return err
		}
	}
	all, unsure, err := explain.Compare(ctx, untested(old), untested(next), within) // a red test is reported already
	if err != nil {
		return err
	}
	fmt.Fprint(&r.text, "\n**What it opens and closes**\n")
	switch {
	case len(all) == 0 && len(unsure) == 0:
		fmt.Fprint(&r.text, "\nNo request is decided differently.\n")
	case len(all) == 0:
		fmt.Fprint(&r.text, "\nNo difference was found.\n")
	default:
		fmt.Fprint(&r.text, "\n| change | hosts | example | sandbox | was | is |\n| --- | --- | --- | --- | --- | --- |\n")
	}
	for i := range all {
		d := &all[i]
		change := string(d.Change)
		if d.Beyond {
			r.failed = true
			change = "**" + change + " beyond the boundary**"
		}
		if d.Leads != "" {
			change += " (leads to " + cli.MarkdownCode(d.Leads) + ")"
		}
		if i < reportMost || d.Beyond {
			fmt.Fprintf(&r.text, "| %s | %s | %s | %s | %s | %s |\n", change, cli.MarkdownCode(d.Hosts), cli.MarkdownCode(d.Example), cli.MarkdownCode(d.Sandbox),
				cli.MarkdownCode(sideText(&d.Was)), cli.MarkdownCode(sideText(&d.Now)))
		}
	}
	r.more(len(all))
	for _, why := range unsure {
		fmt.Fprintf(&r.text, "\nThere may be more: %s.\n", cli.MarkdownWhole(why))
	}
	r.unsure = r.unsure || o.within != "" && len(unsure) > 0
	return nil
}

// replay reports which requests of a log the change decides differently.
func (r *report) replay(ctx context.Context, dir string, old, next *config.Config) {
	fmt.Fprintf(&r.text, "\n**Recorded requests of %s**\n", cli.MarkdownCode(dir))
	was, err := untested(old).Compile()
	if err != nil {
		r.unknown(err)
		return
	}
	is, err := untested(next).Compile()
	if err != nil {
		r.unknown(err)
		return
	}
	from := source.Source{Dir: dir}
	log, filter, err := from.Ask(nil)
	if err != nil {
		r.unknown(err)
		return
	}
	defer log.Close()
	again := replay.New(next, is.Enforced())
	again.Beside(old, was.Enforced())
	if err := log.Decisions(filter, func(one *record.Record) { again.Add(ctx, one) }); err != nil {
		r.unknown(err)
		return
	}
	fmt.Fprintf(&r.text, "\n%s: %s.\n", quantity.Plural(int(again.Decided), "request"), wordsOf(&again.Words))
	groups := again.Groups()
	if len(groups) == 0 {
		return
	}
	fmt.Fprint(&r.text, "\n| count | destination | what | sandbox | was | would be |\n| ---: | --- | --- | --- | --- | --- |\n")
	for i, g := range groups {
		if i < reportMost {
			fmt.Fprintf(&r.text, "| %d | %s | %s | %s | %s | %s |\n", g.Count, cli.MarkdownCode(g.Destination), cli.MarkdownCode(g.What), cli.MarkdownCode(g.Sandbox),
				cli.MarkdownCode(wordOf(g.Was)+" by "+g.WasRule), cli.MarkdownCode(wordOf(g.Now)+" by "+g.NowRule))
		}
	}
	r.more(len(groups))
}
