package log

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/record"
	"github.com/spf13/cobra"
)

func newLog() *cobra.Command {
	o := logOptions{logFlags: &logFlags{}}
	cmd := &cobra.Command{
		Use:   "log [FILTER…]",
		Short: "Show what was allowed and what was denied",
		Long: `Log groups the requests in the audit log by destination, program and reason. It can
read the log while egressd writes it. -f prints new records line by line, --json
prints records as they are stored. --summary begins with totals, and with --json it
is one object. --runs lists the runs of egressd run, the newest first; the records of a
run whose network an egressd serve had are in the log of that daemon.

A filter is key:value; * in a value matches any text. A word without a colon
matches a part of the host, or an address. All keys must match; of several
values for one key, one must. ! or - before a filter negates it.

` + logs.FilterHelp,
		Example: `  egressd log verdict:deny since:1h
  egressd log -f sandbox:ci
  egressd log verdict:deny -host:*.corp.example -class:malformed-request
  egressd log --json 'host:*.test' 'up:>10k'
  egressd log --runs
  egressd log --run last --markdown >> "$GITHUB_STEP_SUMMARY"`,
		Args: func(cmd *cobra.Command, words []string) error {
			return cli.Misspelt(cmd, words, func(word string) string { return "egressd log 'host:*" + word + "*'" })
		},
		RunE: func(cmd *cobra.Command, words []string) error {
			if o.runs {
				return o.listRuns(cmd.OutOrStdout(), cmd.ErrOrStderr(), words, cmd.Flags().Changed("top"))
			}
			if o.tail = usualTail; cmd.Flags().Changed("top") {
				o.tail = o.top
			}
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), words)
		},
	}
	o.add(cmd)
	cli.FilterFlags(cmd, &o.Source)
	cli.Inherit(cmd, "config", "dir", "run", "json", "since", "until")
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "print new records as they come; of a run, until it ends")
	cmd.Flags().IntVarP(&o.top, "top", "n", 100, "print at most `N` lines of each table, 0 for all; with -f, print the last N records first (default 10; 0 for none); with --runs, list the newest N (default 20)")
	cmd.Flags().BoolVar(&o.summary, "summary", false, "begin with totals; with --json, print one object")
	cmd.Flags().BoolVar(&o.markdown, "markdown", false, "print a summary in Markdown, for a CI job")
	cmd.Flags().BoolVar(&o.runs, "runs", false, "list the runs of egressd run")
	cmd.MarkFlagsMutuallyExclusive("markdown", "follow", "runs")
	cmd.MarkFlagsMutuallyExclusive("summary", "follow", "runs")
	cmd.MarkFlagsMutuallyExclusive("markdown", "json")
	cmd.MarkFlagsMutuallyExclusive("dir", "runs")
	cmd.AddCommand(newBy(o.logFlags), newShow(o.logFlags), newSignals(o.logFlags), newVerify(o.logFlags), newExport(o.logFlags))
	return cmd
}

// logFlags are flags of egressd log and of the commands below it.
type logFlags struct {
	source.Source
	json bool
}

func (o *logFlags) add(cmd *cobra.Command) {
	cli.LogFlags(cmd, &o.Source)
	cli.JSONFlag(cmd, &o.json)
}

// usualTail is how many records stand before the new ones.
const usualTail = 10

type logOptions struct {
	*logFlags
	follow            bool
	summary, markdown bool
	runs              bool
	tail, top         int
}

func (o *logOptions) run(ctx context.Context, stdout, stderr io.Writer, words []string) error {
	if err := checkTop(o.top, "egressd log"); err != nil {
		return err
	}
	log, f, err := o.Ask(words)
	if err != nil {
		return err
	}
	defer log.Close()
	if say := o.checkUnchanged(log, stderr); o.follow {
		say()
	} else {
		defer say()
	}
	if o.summary || o.markdown {
		return o.sum(log, f, stdout)
	}
	if o.follow || o.json || f.WantsRecords() {
		_, err := o.stream(ctx, log, f, stdout)
		return err
	}
	return o.summarise(ctx, log, f, stdout, stderr)
}

// sayNewer names the last run if it began after all that was shown of the daemon's log.
func (o *logOptions) sayNewer(stderr io.Writer, last time.Time) {
	if o.Dir != "" || o.Run != "" {
		return
	}
	if newest, err := o.ListRuns(1); err == nil && len(newest) == 1 && !newest[0].Daemon && newest[0].Began.After(last) {
		hint.Sayf(stderr, "the last run is newer: egressd log --run last%s", o.Flags())
	}
}

func (o *logOptions) summarise(ctx context.Context, log *source.RecordReader, f *logs.Filter, stdout, stderr io.Writer) error {
	found, err := overviewOf(log, f)
	if err == nil && found.Len() == 0 && (f.NamesKind() || f.NamesNumbers()) { // such as names, each of which belongs to the connection that followed
		if err := log.Rewind(); err != nil {
			return err
		}
		if n, err := o.stream(ctx, log, f, stdout); err != nil || n > 0 {
			return err
		}
	}
	view := overview{Overview: found, flags: o.AllowFlags(), top: o.top}
	out := bufio.NewWriter(stdout)
	if err := errors.Join(view.print(out, time.Now(), cli.PaletteFor(stdout)), out.Flush()); err != nil {
		return err
	}
	if err == nil && view.Len() == 0 {
		sayNoMatch(stderr, log)
	}
	o.sayNewer(stderr, view.Last)
	return err
}

func sayNoMatch(stderr io.Writer, log *source.RecordReader) {
	fmt.Fprintf(stderr, "egressd: no record matches in %s\n", log.Dir)
}

// overviewOf counts the decisions that pass a filter. It reads the log a second
// time where there were more lines than could be kept. With an error comes what
// was counted until then.
func overviewOf(l *source.RecordReader, f *logs.Filter) (*logs.Overview, error) {
	o := &logs.Overview{}
	err := l.Decisions(f, o.Add)
	if err != nil || o.Exact() {
		return o, err
	}
	if err := l.Rewind(); err != nil {
		return o, err
	}
	o = o.Again()
	return o, l.Decisions(f, o.Add)
}

// stream prints records one a line: all of them, or the last few and then
// those that come, until ctx ends. It returns how many.
func (o *logOptions) stream(ctx context.Context, log *source.RecordReader, f *logs.Filter, stdout io.Writer) (printed int, err error) {
	s := streamer{filter: f, out: bufio.NewWriter(stdout), json: o.json, colours: cli.PaletteFor(stdout)}
	if o.follow {
		s.held, s.tail = []string{}, o.tail
	}
	err = log.Joined(&s.joiner, s.filter, s.add)
	if !o.follow || err != nil {
		return s.printed, errors.Join(err, s.out.Flush())
	}
	if err := s.release(); err != nil {
		return s.printed, err
	}
	return s.printed, o.followRun(ctx, log, &s)
}

// endedEvery is how often a followed run is looked at.
const endedEvery = 300 * time.Millisecond

// followRun prints records as they come until ctx ends. The log of a run is over with the run.
func (o *logOptions) followRun(ctx context.Context, log *source.RecordReader, s *streamer) error {
	ctx, cancel := context.WithCancel(ctx)
	var looking sync.WaitGroup
	looking.Go(func() {
		for !o.Ended() {
			select {
			case <-time.After(endedEvery):
			case <-ctx.Done():
				return
			}
		}
		cancel()
	})
	err := log.Follow(ctx, &s.joiner, s.filter, s.add)
	cancel()
	looking.Wait()
	if err != nil || !o.Ended() {
		return err
	}
	return log.Joined(&s.joiner, s.filter, s.add) // what the run wrote last
}

// A streamer prints the records that pass a filter.
type streamer struct {
	filter  *logs.Filter
	joiner  logs.Joiner
	out     *bufio.Writer
	json    bool
	colours cli.Palette
	held    []string // not nil while only the last lines, tail of them, are wanted
	tail    int
	live    bool // each line is written out at once
	printed int
}

func (s *streamer) add(text string, whole *record.Record) error {
	shown := ""
	if s.json {
		shown = strings.Clone(strings.ReplaceAll(text, "##", `#\u0023`)) // as cli.ASCIIJSON has it
	} else if whole.Kind == record.KindHeartbeat && !s.filter.NamesKind() {
		return nil // one a minute, for programs
	} else {
		shown = line(whole, time.Now(), s.colours)
	}
	if s.held != nil {
		s.held = append(s.held, shown)
		s.held = s.held[max(0, len(s.held)-s.tail):]
		return nil
	}
	return s.write(shown)
}

func (s *streamer) write(text string) error {
	s.printed++
	if _, err := fmt.Fprintln(s.out, text); err != nil || !s.live {
		return err
	}
	return s.out.Flush()
}

// release prints what was held back; from then on each line goes out at once.
func (s *streamer) release() error {
	for _, text := range s.held {
		if err := s.write(text); err != nil {
			return err
		}
	}
	s.held, s.live = nil, true
	return s.out.Flush()
}
