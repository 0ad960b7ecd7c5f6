package logcmd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/internal/spelling"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/record"
	"github.com/spf13/cobra"
)

// pivotColumns is how many values of the second field have a column.
const pivotColumns = 8

func newLogPivotCommand() *cobra.Command {
	var o pivotOptions
	cmd := &cobra.Command{
		Use:   "pivot FIELD [FIELD] [FILTER…]",
		Short: "Count decisions by one or two fields",
		Long: `Pivot counts decisions (or bytes, with --by) by the values of one field. A second
field adds a column for each of its eight most frequent values. Values without a
line or column of their own are counted under "…".

The fields are ` + strings.Join(logs.FieldNames, ", ") + `.
domain is the registrable domain (example.com for a.b.example.com). Hours and days
are in UTC.`,
		Example: `  egressd log pivot domain verdict since:1d
  egressd log pivot proc host --by up verdict:allow`,
		ValidArgsFunction: o.completeFields,
		RunE: func(cmd *cobra.Command, words []string) error {
			return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr(), words)
		},
	}
	cli.FilterFlags(cmd, &o.Source)
	cli.JSONFlag(cmd, &o.json)
	cmd.Flags().StringVar(&o.by, "by", "count", "what to count: count, up, down")
	cmd.Flags().IntVar(&o.top, "top", 20, "print at most `N` lines; 0 for all")
	return cmd
}

type pivotOptions struct {
	source.Source
	json   bool
	by     string
	top    int
	fields []string
}

func (o *pivotOptions) run(stdout, stderr io.Writer, words []string) error {
	words, err := o.takeFields(words)
	if err != nil {
		return err
	}
	log, f, err := o.Ask(words)
	if err != nil {
		return err
	}
	defer log.Close()
	t, err := o.count(log, f)
	if err != nil {
		return err
	}
	if len(t.Rows) == 0 && t.Beyond == nil && !o.json {
		sayNoMatch(stderr, log)
		return nil
	}
	out := bufio.NewWriter(stdout)
	if o.json {
		err = cli.PrintJSON(out, t)
	} else {
		err = t.print(out)
	}
	return errors.Join(err, out.Flush())
}

// takeFields takes the fields off the words, and leaves the filter.
func (o *pivotOptions) takeFields(words []string) ([]string, error) {
	if err := checkTop(o.top, "egressd log pivot host"); err != nil {
		return nil, err
	}
	if o.by != "count" && o.by != "up" && o.by != "down" {
		return nil, hint.Misused(fmt.Errorf("--by %s: it is count, up or down", o.by), "egressd log pivot host --by up")
	}
	for len(words) > 0 && len(o.fields) < 2 && logs.Field(words[0]) != nil {
		o.fields, words = append(o.fields, words[0]), words[1:]
	}
	if len(o.fields) > 0 {
		return words, nil
	}
	if len(words) == 0 {
		return nil, hint.Misused(errors.New("pivot needs a field"), "egressd log pivot host verdict")
	}
	err := fmt.Errorf("there is no field %q; there is %s", words[0], strings.Join(logs.FieldNames, ", "))
	if near := spelling.Nearest(words[0], logs.FieldNames); near != "" {
		return nil, hint.Misused(err, "egressd log pivot "+near)
	}
	return nil, hint.Misused(err, "egressd log pivot host verdict")
}

// count reads the log twice: which values are to have a line is known only at
// the end.
func (o *pivotOptions) count(log *source.RecordReader, f *logs.Filter) (*pivotTable, error) {
	row, column := logs.Field(o.fields[0]), func(*record.Record) string { return "" }
	if len(o.fields) == 2 {
		column = logs.Field(o.fields[1])
	}
	var rows, columns logs.Ranking
	if err := log.Decisions(f, func(r *record.Record) {
		if logs.Decides(r) {
			rows.AddWeight(row(r), o.weight(r), r)
			columns.AddWeight(column(r), o.weight(r), r)
		}
	}); err != nil {
		return nil, err
	}
	if err := log.Rewind(); err != nil {
		return nil, err
	}
	p := logs.Pivot{Rows: rows.Only(o.top), Columns: columns.Only(pivotColumns)}
	err := log.Decisions(f, func(r *record.Record) {
		if logs.Decides(r) {
			p.Add(row(r), column(r), o.weight(r), r)
		}
	})
	return o.table(&p), err
}

// weight is what a decision counts.
func (o *pivotOptions) weight(r *record.Record) int64 {
	switch {
	case o.by == "count":
		return r.Times()
	case r.Bytes == nil:
		return 0
	case o.by == "up":
		return r.Bytes.Up
	default:
		return r.Bytes.Down
	}
}

// A pivotTable is a table of counts. The last count of a row stands for all values without a column.
type pivotTable struct {
	Fields  []string   `json:"fields"`
	By      string     `json:"by"`
	Columns []string   `json:"columns,omitempty"`
	Rows    []pivotRow `json:"rows"`
	Beyond  *pivotRow  `json:"beyond,omitempty"` // what the values come to that have no row
}

type pivotRow struct {
	Value  string  `json:"value"`
	Total  int64   `json:"total"`
	Counts []int64 `json:"counts,omitempty"`
}

func (o *pivotOptions) table(p *logs.Pivot) *pivotTable {
	t := &pivotTable{Fields: o.fields, By: o.by, Rows: []pivotRow{}}
	columns := p.Columns.Top(0)
	if len(o.fields) == 2 {
		for _, c := range columns {
			t.Columns = append(t.Columns, c.Value)
		}
	}
	row := func(e *logs.Entry) pivotRow {
		var r pivotRow
		for _, c := range append(columns, nil) {
			n := p.Cell(e, c)
			r.Counts, r.Total = append(r.Counts, n), r.Total+n
		}
		if len(o.fields) < 2 {
			r.Counts = nil
		}
		return r
	}
	for _, e := range p.Rows.Top(0) {
		r := row(e)
		r.Value = e.Value
		t.Rows = append(t.Rows, r)
	}
	if rest := row(nil); rest.Total > 0 {
		t.Beyond = &rest
	}
	return t
}

func (t *pivotTable) print(w io.Writer) error {
	number := func(n int64) string {
		switch {
		case n == 0:
			return "–"
		case t.By == "count":
			return fmt.Sprint(n)
		}
		return quantity.Bytes(n)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "%s\tTOTAL", strings.ToUpper(t.Fields[0]))
	others := t.others()
	for _, c := range t.Columns {
		fmt.Fprintf(table, "\t%s", cli.Cut(cli.Cell(c), cli.LongestColumn))
	}
	if others {
		fmt.Fprint(table, "\t"+logs.Beyond)
	}
	fmt.Fprintln(table)
	rows := t.Rows
	if t.Beyond != nil {
		rest := *t.Beyond
		rest.Value = logs.Beyond
		rows = append(rows[:len(rows):len(rows)], rest)
	}
	for _, r := range rows {
		fmt.Fprintf(table, "%s\t%s", cli.CutHost(cli.Cell(r.Value)), number(r.Total))
		for i, n := range r.Counts {
			if i < len(t.Columns) || others {
				fmt.Fprintf(table, "\t%s", number(n))
			}
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}

// others reports whether there are values that have no column.
func (t *pivotTable) others() bool {
	if len(t.Columns) == 0 {
		return false
	}
	for _, r := range t.Rows {
		if r.Counts[len(r.Counts)-1] > 0 {
			return true
		}
	}
	return t.Beyond != nil && t.Beyond.Counts[len(t.Beyond.Counts)-1] > 0
}

func (o *pivotOptions) completeFields(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	all, directive := cli.CompleteFilters(&o.Source)(cmd, args, word)
	if len(args) < 2 && !strings.Contains(word, ":") {
		all = append(slices.Clone(logs.FieldNames), all...)
	}
	return all, directive
}
