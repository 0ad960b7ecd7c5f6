package log

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/internal/spelling"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/record"
	"github.com/spf13/cobra"
)

func newBy(flags *logFlags) *cobra.Command {
	o := byOptions{logFlags: flags}
	cmd := &cobra.Command{
		Use:   "by FIELD[,FIELD…] [FILTER…]",
		Short: "Count decisions by host, program, verdict, hour and others",
		Long: `By counts decisions for each value of a field, or for each combination of the values of
several. The columns are count, denied, bytes up, bytes down, first and last.

The fields are ` + strings.Join(logs.FieldNames, ", ") + `.
domain is the registrable domain (example.com for a.b.example.com). Hours and days
are in UTC, and are printed in their order. What --top leaves out is summed under "…".
Filters are those of egressd log, which its help lists: verdict:deny, domain:example.com.`,
		Example: `  egressd log by host since:1d
  egressd log by domain,verdict
  egressd log by proc,host --sort up verdict:allow
  egressd log by hour --json`,
		ValidArgsFunction: o.completeFields,
		RunE: func(cmd *cobra.Command, words []string) error {
			return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr(), words)
		},
	}
	cli.Filters(cmd, &o.Source)
	cmd.Flags().StringVar(&o.sort, "sort", "", "what stands first: "+strings.Join(sortWords, ", ")+" (default: count; value for hour and day)")
	cmd.Flags().IntVar(&o.top, "top", 20, "print at most `N` lines; 0 for all")
	_ = cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(sortWords, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

var sortWords = []string{"count", "denied", "up", "down", "first", "last", "value"}

type byOptions struct {
	*logFlags
	sort   string
	top    int
	fields []string
}

func (o *byOptions) run(stdout, stderr io.Writer, words []string) error {
	words, err := o.takeFields(words)
	if err != nil {
		return err
	}
	log, f, err := o.Ask(words)
	if err != nil {
		return err
	}
	defer log.Close()
	defer o.checkUnchanged(log, stderr)()
	counts, err := o.count(log, f)
	if err != nil {
		return err
	}
	rows := o.rows(counts)
	if len(rows) == 0 && !o.json {
		sayNoMatch(stderr, log)
		return nil
	}
	out := bufio.NewWriter(stdout)
	if o.json {
		err = cli.PrintEach(out, rows)
	} else {
		err = o.print(out, rows, time.Now())
	}
	return errors.Join(err, out.Flush())
}

// takeFields takes the fields off the words, and leaves the filter.
func (o *byOptions) takeFields(words []string) ([]string, error) {
	if err := checkTop(o.top, "egressd log by host"); err != nil {
		return nil, err
	}
	if o.sort != "" && !slices.Contains(sortWords, o.sort) {
		return nil, hint.Misused(fmt.Errorf("--sort %s: it is %s", o.sort, strings.Join(sortWords, ", ")), "egressd log by host --sort up")
	}
	if len(words) == 0 {
		return nil, hint.Misused(errors.New("log by needs a field: "+strings.Join(logs.FieldNames, ", ")), "egressd log by host")
	}
	o.fields = strings.Split(words[0], ",")
	for _, name := range o.fields {
		if logs.Field(name) != nil {
			continue
		}
		next := "egressd log by host,verdict"
		if near := spelling.Nearest(name, logs.FieldNames); near != "" {
			next = "egressd log by " + near
		}
		return nil, hint.Misused(fmt.Errorf("there is no field %q; there is %s", name, strings.Join(logs.FieldNames, ", ")), next)
	}
	if len(words) > 1 && logs.Field(words[1]) != nil {
		return nil, hint.Misused(fmt.Errorf("%s is a field, and stands where a filter does", words[1]),
			"egressd log by "+words[0]+","+words[1]+"; for hosts with that word: egressd log by "+words[0]+" 'host:*"+words[1]+"*'")
	}
	return words[1:], nil
}

// between stands between the values of several fields. No record holds this byte.
const between = "\xff"

// count reads the log a second time if there were more values than could be kept.
func (o *byOptions) count(log *source.RecordReader, f *logs.Filter) (*logs.Ranking, error) {
	counts := &logs.Ranking{}
	add := func(r *record.Record) {
		if !logs.Decides(r) {
			return
		}
		values := make([]string, len(o.fields))
		for i, name := range o.fields {
			values[i] = logs.Field(name)(r)
		}
		counts.Add(strings.Join(values, between), o.weight(r), r)
	}
	if err := log.Decisions(f, add); err != nil || counts.Exact() {
		return counts, err
	}
	if err := log.Rewind(); err != nil {
		return nil, err
	}
	counts = counts.Again()
	return counts, log.Decisions(f, add)
}

// weight is how much a decision counts for a value to be kept.
func (o *byOptions) weight(r *record.Record) int64 {
	switch {
	case r.Bytes != nil && o.sort == "up":
		return r.Bytes.Up
	case r.Bytes != nil && o.sort == "down":
		return r.Bytes.Down
	case o.sort == "up" || o.sort == "down":
		return 0
	}
	return r.Times()
}

// A byRow is what the decisions with one value of each field come to.
type byRow struct {
	By     map[string]string `json:"by,omitempty"`     // values by field
	Beyond bool              `json:"beyond,omitempty"` // it is the sum of the values that have no row
	Count  int64             `json:"count"`
	Denied int64             `json:"denied"` // of Count
	Up     int64             `json:"up"`     // payload bytes
	Down   int64             `json:"down"`
	First  time.Time         `json:"first"`
	Last   time.Time         `json:"last"`
}

func (o *byOptions) rows(counts *logs.Ranking) (rows []byRow) {
	entries := counts.Top(0)
	slices.SortStableFunc(entries, o.order)
	rest := counts.Rest()
	for i, e := range entries {
		if o.top > 0 && i >= o.top {
			rest.Join(e)
			continue
		}
		by := map[string]string{}
		for i, value := range strings.Split(e.Value, between) {
			by[o.fields[i]] = value
		}
		rows = append(rows, byRow{by, false, e.Count, e.Denied, e.Up, e.Down, e.First, e.Last})
	}
	if rest.Count > 0 {
		rows = append(rows, byRow{nil, true, rest.Count, rest.Denied, rest.Up, rest.Down, rest.First, rest.Last})
	}
	return rows
}

// order compares by --sort: the most first, the newest last decision and the earliest first one first.
func (o *byOptions) order(a, b *logs.Entry) int {
	by := o.sort
	if by == "" && (o.fields[0] == "hour" || o.fields[0] == "day") {
		by = "value"
	}
	switch by {
	case "denied":
		return cmp.Compare(b.Denied, a.Denied)
	case "up":
		return cmp.Compare(b.Up, a.Up)
	case "down":
		return cmp.Compare(b.Down, a.Down)
	case "first":
		return a.First.Compare(b.First)
	case "last":
		return b.Last.Compare(a.Last)
	case "value":
		return cmp.Compare(a.Value, b.Value)
	}
	return cmp.Compare(b.Count, a.Count)
}

func (o *byOptions) print(w io.Writer, rows []byRow, now time.Time) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "%s\tCOUNT\tDENIED\tUP\tDOWN\tFIRST\tLAST\n", strings.ToUpper(strings.Join(o.fields, "\t")))
	for _, r := range rows {
		for _, name := range o.fields {
			value := logs.Beyond
			if !r.Beyond {
				value = cli.CutHost(cli.Cell(r.By[name]))
			}
			fmt.Fprintf(table, "%s\t", value)
		}
		fmt.Fprintf(table, "%d\t%d\t%s\t%s\t%s\t%s\n", r.Count, r.Denied, quantity.Bytes(r.Up), quantity.Bytes(r.Down), quantity.Clock(r.First, now), quantity.Clock(r.Last, now))
	}
	return table.Flush()
}

func (o *byOptions) completeFields(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return cli.CompleteFilters(&o.Source)(cmd, args, word)
	}
	before := word[:strings.LastIndex(word, ",")+1]
	var all []string
	for _, name := range logs.FieldNames {
		all = append(all, before+name)
	}
	return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}
