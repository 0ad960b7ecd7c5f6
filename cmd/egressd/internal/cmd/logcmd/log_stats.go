package logcmd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/record"
	"github.com/spf13/cobra"
)

func newLogStatsCommand() *cobra.Command {
	var o statsOptions
	cmd := &cobra.Command{
		Use:   "stats [FILTER…]",
		Short: "Show totals: hosts, sandboxes, programs, bytes, hours",
		Long: `Stats counts decisions in total and per minute, bytes, the most frequent hosts,
sandboxes, programs and reasons, and decisions by hour.`,
		Example: `  egressd log stats since:1d`,
		RunE: func(cmd *cobra.Command, words []string) error {
			return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr(), words)
		},
	}
	cli.FilterFlags(cmd, &o.Source)
	cli.JSONFlag(cmd, &o.json)
	cmd.Flags().IntVar(&o.top, "top", 10, "print at most `N` of each list; 0 for all")
	return cmd
}

type statsOptions struct {
	source.Source
	json bool
	top  int
}

// A stats counts decisions by single values, and by the hour.
type stats struct {
	first, last time.Time
	verdicts    map[string]int64
	up, down    int64
	lookups     int64           // decisions of DNS questions
	hours       map[int64]*hour // by hours since 1970
	rankings    []*logs.Ranking
}

type hour struct{ allowed, denied int64 }

// statsLists are what there is a ranking of.
var statsLists = []struct{ field, title string }{
	{"host", "HOST"}, {"sandbox", "SANDBOX"}, {"proc", "PROGRAM"}, {"class", "CLASS"},
}

func (o *statsOptions) run(stdout, stderr io.Writer, words []string) error {
	if err := checkTop(o.top, "egressd log stats"); err != nil {
		return err
	}
	log, f, err := o.Ask(words)
	if err != nil {
		return err
	}
	defer log.Close()
	s := newStats()
	if err := log.Decisions(f, s.add); err != nil {
		return err
	}
	if again := s.again(); again != nil {
		if err := log.Rewind(); err != nil {
			return err
		}
		s = again
		if err := log.Decisions(f, s.add); err != nil {
			return err
		}
	}
	if s.decisions() == 0 && !o.json {
		sayNoMatch(stderr, log)
		return nil
	}
	out := bufio.NewWriter(stdout)
	if o.json {
		err = cli.PrintJSON(out, s.view(o.top))
	} else {
		err = s.print(out, o.top, cli.PaletteFor(stdout))
	}
	return errors.Join(err, out.Flush())
}

func newStats() *stats {
	s := &stats{verdicts: map[string]int64{}, hours: map[int64]*hour{}}
	for range statsLists {
		s.rankings = append(s.rankings, &logs.Ranking{})
	}
	return s
}

// again returns stats for a second pass over the log, or nil if the counts of the first pass are exact.
func (s *stats) again() *stats {
	if !slices.ContainsFunc(s.rankings, func(k *logs.Ranking) bool { return !k.Exact() }) {
		return nil
	}
	again := newStats()
	for i, k := range s.rankings {
		again.rankings[i] = k.Again()
	}
	return again
}

func (s *stats) add(r *record.Record) {
	if !logs.Decides(r) {
		return
	}
	n := r.Times()
	if s.first.IsZero() || r.Time.Before(s.first) {
		s.first = r.Time
	}
	if r.Time.After(s.last) {
		s.last = r.Time
	}
	if r.Bytes != nil {
		s.up, s.down = s.up+r.Bytes.Up, s.down+r.Bytes.Down
	}
	if r.Kind == record.KindDNS {
		s.lookups += n
	}
	at := r.Time.Unix() / 3600
	if s.hours[at] == nil {
		s.hours[at] = &hour{}
	}
	switch r.Decision.Action {
	case "allow":
		s.verdicts["allow"] += n
		s.hours[at].allowed += n
	case "ask":
		s.verdicts["ask"] += n
	default:
		s.verdicts["deny"] += n
		s.hours[at].denied += n
	}
	for i, list := range statsLists {
		if value := logs.Field(list.field)(r); value != "" {
			s.rankings[i].Add(value, r)
		}
	}
}

// A statsView is what stats tells a script.
type statsView struct {
	First     *time.Time               `json:"first,omitempty"` // when decisions were made
	Last      *time.Time               `json:"last,omitempty"`
	Decisions int64                    `json:"decisions"`
	Verdicts  map[string]int64         `json:"verdicts"`
	PerMinute float64                  `json:"per_minute"`
	Up        int64                    `json:"up"` // payload bytes
	Down      int64                    `json:"down"`
	Hours     []hourView               `json:"hours"` // those in which there was something
	Top       map[string][]*logs.Entry `json:"top"`
}

type hourView struct {
	Hour    time.Time `json:"hour"`
	Allowed int64     `json:"allowed"`
	Denied  int64     `json:"denied"`
}

func (s *stats) view(top int) *statsView {
	v := &statsView{Verdicts: s.verdicts, Up: s.up, Down: s.down, PerMinute: s.perMinute(), Hours: []hourView{}, Top: map[string][]*logs.Entry{}}
	if !s.first.IsZero() {
		v.First, v.Last = &s.first, &s.last
	}
	v.Decisions = s.decisions()
	for at, h := range s.hours {
		v.Hours = append(v.Hours, hourView{time.Unix(at*3600, 0).UTC(), h.allowed, h.denied})
	}
	slices.SortFunc(v.Hours, func(a, b hourView) int { return a.Hour.Compare(b.Hour) })
	for i, list := range statsLists {
		v.Top[list.field] = append([]*logs.Entry{}, s.rankings[i].Top(top)...)
	}
	return v
}

func (s *stats) decisions() (n int64) {
	for _, count := range s.verdicts {
		n += count
	}
	return n
}

// perMinute returns the decisions per minute between the first and the last one, over at least a minute.
func (s *stats) perMinute() float64 {
	return float64(s.decisions()) / max(1, s.last.Sub(s.first).Minutes())
}

func (s *stats) print(w io.Writer, top int, colours cli.Palette) error {
	total := quantity.Plural(int(s.decisions()), "decision")
	if s.lookups > 0 {
		total += fmt.Sprintf(" (%d of them DNS questions)", s.lookups)
	}
	fmt.Fprintf(w, "%s from %s to %s, %.1f a minute\n", total,
		s.first.Local().Format(time.DateTime), s.last.Local().Format(time.DateTime), s.perMinute())
	fmt.Fprintf(w, "%d allowed, %d denied, %d asked; %s down, %s up\n", s.verdicts["allow"], s.verdicts["deny"], s.verdicts["ask"],
		quantity.Bytes(s.down), quantity.Bytes(s.up))
	s.printHours(w, colours)
	for i, list := range statsLists {
		if err := printEntries(w, list.title, s.rankings[i].Top(top)); err != nil {
			return err
		}
	}
	return nil
}

func printEntries(w io.Writer, title string, entries []*logs.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\n%s\tCOUNT\tDENIED\tDOWN\tUP\n", title)
	for _, e := range entries {
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\t%s\n", cli.CutHost(cli.Cell(e.Value)), e.Count, e.Denied, quantity.Bytes(e.Down), quantity.Bytes(e.Up))
	}
	return table.Flush()
}

// mostBars is how wide the picture of the hours is.
const mostBars = 48

// printHours draws a bar of decisions for each hour. A long log gets one bar for several hours.
func (s *stats) printHours(w io.Writer, colours cli.Palette) {
	from, to := s.first.Unix()/3600, s.last.Unix()/3600
	each := (to-from)/mostBars + 1
	bars := int((to-from)/each) + 1
	allowed, denied := make([]int64, bars), make([]int64, bars)
	for at, h := range s.hours {
		allowed[(at-from)/each] += h.allowed
		denied[(at-from)/each] += h.denied
	}
	step := "an hour"
	if each > 1 {
		step = fmt.Sprintf("%d hours", each)
	}
	fmt.Fprintf(w, "allowed %s  most in %s: %d\n", colours.Paint("32", sparkline(allowed)), step, slices.Max(allowed))
	fmt.Fprintf(w, "denied  %s  most in %s: %d\n", colours.Paint("31", sparkline(denied)), step, slices.Max(denied))
}

// sparkline draws each value as a bar; what is not nothing is seen.
func sparkline(values []int64) string {
	bars := []rune(" ▁▂▃▄▅▆▇█")
	most := max(1, slices.Max(values))
	var b strings.Builder
	for _, n := range values {
		b.WriteRune(bars[(n*int64(len(bars)-1)+most-1)/most])
	}
	return b.String()
}
