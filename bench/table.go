//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
)

// direct is the name of the contender that is no proxy.
const direct = "direct"

// A row is the result of one contender in one scenario: medians over the rounds. It becomes a row of the
// table or a line of JSON.
type row struct {
	Scenario string  `json:"scenario"`
	Proxy    string  `json:"proxy"`
	Rounds   int     `json:"rounds"`
	Value    number  `json:"value"`
	Unit     string  `json:"unit"`
	Ratio    *ratio  `json:"ratio,omitempty"` // to direct's value
	Added    *number `json:"added,omitempty"` // to direct's value
	CPU      *number `json:"cpu,omitempty"`
	CPUUnit  string  `json:"cpu_unit,omitempty"`
	Kernel   *number `json:"kernel_kib,omitempty"` // a tunnel's
	P99      number  `json:"p99_us"`
	Errors   int64   `json:"errors"`
	First    string  `json:"first_error,omitempty"`
	Reopened int64   `json:"reopened,omitempty"` // kept-alive connections that the proxy ended
}

type ratio struct {
	Median number `json:"median"`
	Min    number `json:"min"`
	Max    number `json:"max"`
}

// A number is a measured value; what could not be measured is null in JSON.
type number float64

func (n number) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

// summariseCells makes a scenario's row of a contender's cells; bases are
// those of direct in the same rounds.
func summariseCells(s scenario, name string, cells, bases []cell) row {
	values := each(cells, s.value)
	r := row{Scenario: s.name, Proxy: name, Rounds: len(cells), Value: number(median(values)), Unit: s.unit}
	for _, c := range cells {
		r.Errors += c.Errors
		r.Reopened += c.Reopened
		if r.First == "" {
			r.First = c.First
		}
	}
	r.P99 = number(median(each(cells, func(c cell) float64 { return micros(c.P99) })))
	if s.kind == holdJob {
		r.Kernel = numberOf(median(each(cells, func(c cell) float64 { return c.kernel })))
		return r
	}
	if name != direct {
		r.compare(s, cells, values, each(bases, s.value))
	}
	return r
}

func (r *row) compare(s scenario, cells []cell, values, bases []float64) {
	r.CPU, r.CPUUnit = numberOf(median(each(cells, s.cost))), s.costUnit
	if q, ok := ratios(values, bases); ok {
		r.Ratio = &ratio{number(q.Median), number(q.Min), number(q.Max)}
	}
	if s.added {
		r.Added = numberOf(median(values) - median(bases))
	}
}

func numberOf(f float64) *number {
	n := number(f)
	return &n
}

func each(cells []cell, f func(cell) float64) []float64 {
	values := make([]float64, len(cells))
	for i, c := range cells {
		values[i] = f(c)
	}
	return values
}

// writeTable writes the rows as one aligned table, and the first error of
// every marked one below it.
func writeTable(out io.Writer, rows []row) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SCENARIO\tPROXY\tMEASURED\t÷ DIRECT\tMIN–MAX\tPROXY CPU\tNOTE")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Scenario, r.Proxy, r.measured(), r.median(), r.spread(), r.cpu(), r.note())
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, r := range rows {
		if r.Errors > 0 {
			fmt.Fprintf(out, "! %s, %s: %d wrong or failed, the first: %s\n", r.Scenario, r.Proxy, r.Errors, r.First)
		}
	}
	return nil
}

func writeJSON(out io.Writer, rows []row) error {
	e := json.NewEncoder(out)
	for _, r := range rows {
		if err := e.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

func (r row) measured() string {
	switch {
	case r.Kernel != nil && r.Proxy == direct:
		return "– (the rest is less its kernel memory)"
	case r.Kernel != nil:
		return significant(r.Value) + " own + " + significant(*r.Kernel) + " kernel KiB"
	case r.Added != nil:
		return significant(r.Value) + " " + r.Unit + " (+" + significant(*r.Added) + ")"
	case r.Unit == "/s":
		return significant(r.Value) + r.Unit
	}
	return significant(r.Value) + " " + r.Unit
}

func (r row) median() string {
	if r.Ratio == nil {
		return "–"
	}
	return fmt.Sprintf("%.2f", r.Ratio.Median)
}

func (r row) spread() string {
	if r.Ratio == nil {
		return "–"
	}
	return fmt.Sprintf("%.2f–%.2f", r.Ratio.Min, r.Ratio.Max)
}

func (r row) cpu() string {
	if r.CPU == nil {
		return "–"
	}
	return significant(*r.CPU) + " " + r.CPUUnit
}

func (r row) note() string {
	switch {
	case r.Errors > 0:
		return fmt.Sprintf("! %d errors", r.Errors)
	case r.Reopened > 0:
		return "ends every connection"
	}
	return ""
}

// significant writes a number with about three digits.
func significant(n number) string {
	switch f := math.Abs(float64(n)); {
	case math.IsNaN(f) || math.IsInf(f, 0):
		return "?"
	case f >= 100:
		return fmt.Sprintf("%.0f", n)
	case f >= 10:
		return fmt.Sprintf("%.1f", n)
	}
	return fmt.Sprintf("%.2f", n)
}
