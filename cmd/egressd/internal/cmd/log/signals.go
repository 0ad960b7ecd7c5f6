package log

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/replay"
	"github.com/egressd/egressd/logs/signals"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/record"
	"github.com/spf13/cobra"
)

func newSignals(flags *logFlags) *cobra.Command {
	o := signalsOptions{logFlags: flags}
	cmd := &cobra.Command{
		Use:   "signals [FILTER…]",
		Short: "Rank signs of data being sent out",
		Long: `Signals ranks what each program did with each destination by how much it looks like
data being sent out: canaries, names that carry data, unusual uploads, uploads to
public sites, other routes tried after a denial, and requests at fixed intervals.

What a program did that began within one hour is one story, with a number that stays.
A score is from 0 to 100. It is a hint for a reader, and egressd decides nothing by it. Filters are those of egressd log, which its help lists;
records that they leave out are not compared with either.

"stop" lists parts of a policy that would have stopped it: methods and paths of a host, bounds
of bytes, hosts, a domain, for one sandbox or for all. Each is tried on the whole log, and
says what else it denies. The part that denies the fewest other requests is first.`,
		Example: `  egressd log signals
  egressd log signals --top 3 since:24h sandbox:ci
  egressd log signals --json`,
		RunE: func(cmd *cobra.Command, words []string) error {
			return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr(), words)
		},
	}
	cli.Filters(cmd, &o.Source)
	cmd.Flags().IntVar(&o.top, "top", 10, "print the `N` stories with the highest scores; 0 for all")
	return cmd
}

type signalsOptions struct {
	*logFlags
	top int
}

func (o *signalsOptions) run(stdout, stderr io.Writer, words []string) error {
	if o.top < 0 {
		return hint.Misused(fmt.Errorf("--top %d is less than nothing", o.top), "egressd log signals --top 10")
	}
	log, filter, err := o.Ask(words)
	if err != nil {
		return err
	}
	defer log.Close()
	defer o.checkUnchanged(log, stderr)()
	var finder signals.Finder
	err = log.Decisions(filter, finder.Add)
	stories := signals.Stories(finder.Suspects())
	if o.top > 0 {
		stories = stories[:min(len(stories), o.top)]
	}
	all := slices.Concat(stories...)
	found := make([]foundSignals, len(all))
	for i := range all {
		found[i].Suspect = all[i]
	}
	if err == nil {
		err = o.addStops(log, found)
	}
	out := bufio.NewWriter(stdout)
	if err := errors.Join(o.print(out, found, cli.PaletteFor(stdout)), out.Flush()); err != nil {
		return err
	}
	if err == nil && len(all) == 0 {
		fmt.Fprintf(stderr, "egressd: no sign of data being sent out in %s\n", log.Dir)
	}
	return err
}

// A foundSignals is a suspect and what would have stopped it.
type foundSignals struct {
	signals.Suspect
	Stop *replay.Stop `json:"stop,omitempty"` // absent if no rule is about it
}

// addStops tries on the whole log which rules would have stopped what was found.
func (o *signalsOptions) addStops(log *source.RecordReader, found []foundSignals) error {
	var courses []replay.Course
	for _, f := range found {
		courses = append(courses, replay.Course{Sandbox: f.Sandbox, Program: f.Program, Destination: strings.TrimPrefix(f.Destination, signals.Many)})
	}
	if len(courses) == 0 {
		return nil
	}
	stops, err := replay.Stops(context.Background(), courses, func(do func(*record.Record)) error {
		if err := log.Rewind(); err != nil {
			return err
		}
		return log.Decisions(new(logs.Filter), do)
	})
	for i := range found {
		found[i].Stop = stops[courses[i]]
	}
	return err
}

func (o *signalsOptions) print(w io.Writer, all []foundSignals, colours cli.Palette) error {
	if o.json {
		return cli.PrintEach(w, all)
	}
	for i := 0; i < len(all); {
		n := 1
		for i+n < len(all) && all[i+n].Story == all[i].Story {
			n++
		}
		if err := printStory(w, all[i], all[i+1:i+n], o.Flags(), time.Now(), colours); err != nil {
			return err
		}
		i += n
	}
	return nil
}

// printStory writes one story: who and where, why, what else the program did, and what to look at.
func printStory(w io.Writer, a foundSignals, more []foundSignals, flags string, now time.Time, colours cli.Palette) error {
	who := a.Sandbox
	if a.Program != "" {
		who = strings.TrimPrefix(who+"/"+a.Program, "default/")
	}
	score := fmt.Sprintf("%3d", a.Score)
	if a.Score >= 40 {
		score = colours.Paint("31", score)
	}
	fmt.Fprintf(w, "%s  %s  %s  %s to %s  %s\n", score, colours.Bold(cli.Cell(a.Destination)), cli.Cell(who), quantity.Clock(a.First, now), quantity.Clock(a.Last, now), a.Story)
	for _, s := range a.Signals {
		fmt.Fprintf(w, "     %-8s %s\n", s.What, printable.Text(s.Evidence))
		if l := s.From; l != nil {
			fmt.Fprintf(w, "     %-8s %s to %s: egressd log show %s%s; fetched: egressd log show %s%s\n", "came", cli.Cell(l.Sandbox), cli.Cell(l.Destination), printable.Text(l.Sent), flags, printable.Text(l.Fetched), flags)
		}
	}
	if p := a.Peak; p != nil {
		fmt.Fprintf(w, "     %-8s %s of it up from %s to %s\n", "peak", quantity.Bytes(p.Up), quantity.Clock(p.From, now), quantity.Clock(p.Until, now))
	}
	if stop := a.Stop; stop != nil && stop.Policy == "" {
		fmt.Fprintf(w, "     %-8s nothing of it passed: %d refused, the last as %s\n", "stop", stop.Refused, printable.Text(stop.Why))
	} else if stop != nil {
		for _, t := range append([]replay.Tried{stop.Tried}, stop.Wider...) {
			fmt.Fprintf(w, "     %-8s %s\n", "stop", printable.Text(t.String()))
		}
	}
	for _, b := range more {
		what := ""
		if len(b.Signals) > 0 {
			what = b.Signals[0].What + " "
			a.IDs = append(a.IDs, b.IDs[:min(1, len(b.IDs))]...)
		}
		fmt.Fprintf(w, "     %-8s %d  %s%s\n", "also", b.Score, what, cli.Cell(b.Destination))
	}
	if len(a.IDs) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "     %-8s egressd log show %s%s\n", "see", printable.Text(strings.Join(a.IDs, ", ")), flags)
	return err
}
