package logs

import (
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
)

// FieldNames are what decisions can be counted by.
var FieldNames = []string{
	"host", "domain", "destination", "port", "addr", "verdict", "class", "rule", "layer", "policy", "sandbox", "proc", "who", "via",
	"what", "method", "path", "status", "sni", "outcome", "why", "hour", "day",
}

// Field returns how to read what a decision is counted by, or nil where there is
// no field of that name. The text is "" where a record does not say.
func Field(name string) func(*egress.Record) string {
	switch name {
	case "domain":
		return domainOf
	case "destination":
		return Destination
	case "port":
		return func(r *egress.Record) string { return numberText(int(portOf(r))) }
	case "status":
		return func(r *egress.Record) string { return numberText(statusOf(r)) }
	case "addr":
		return func(r *egress.Record) string {
			if r.Dst == nil {
				return ""
			}
			return r.Dst.Addr
		}
	case "proc":
		return Process
	case "who":
		return Who
	case "what":
		return What
	case "why":
		return Why
	case "hour":
		return func(r *egress.Record) string { return r.Time.UTC().Format("2006-01-02T15Z") }
	case "day":
		return func(r *egress.Record) string { return r.Time.UTC().Format(time.DateOnly) }
	case "kind", "shadow", "marked": // a decision is of one kind or another, whatever it says
		return nil
	}
	return filterTexts[name]
}

func numberText(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// domainOf is what was registered of the name, or the host where there is no such.
func domainOf(r *egress.Record) string {
	host := Host(r)
	if strings.Contains(host, ":") || isAddress(host) {
		return host
	}
	if domain := policy.Registrable(host); domain != "" {
		return domain
	}
	return host
}

// A Pivot counts decisions by two values at once: those of the rankings, and the
// rest of each under [Beyond].
type Pivot struct {
	Rows, Columns *Ranking

	cells map[[2]string]int64
}

// Add takes in a decision with its two values, and how much it weighs.
func (p *Pivot) Add(row, column string, weight int64, r *egress.Record) {
	row, column = p.Rows.place(row), p.Columns.place(column)
	p.Rows.AddWeight(row, weight, r)
	p.Columns.AddWeight(column, weight, r)
	if p.cells == nil {
		p.cells = map[[2]string]int64{}
	}
	p.cells[[2]string{row, column}] += weight
}

// beyondKey is no value that a record can have.
const beyondKey = "\xff"

// place is a value that is counted on its own, or the key of the others.
func (k *Ranking) place(value string) string {
	if e := k.entries[value]; e != nil {
		return e.Value
	}
	return beyondKey
}

// Cell is what was counted for a row, or for all that have none where row is
// nil, and a column, or all others where column is nil.
func (p *Pivot) Cell(row, column *Entry) int64 {
	r, c := beyondKey, beyondKey
	if row != nil {
		r = row.Value
	}
	if column != nil {
		c = column.Value
	}
	return p.cells[[2]string{r, c}]
}
