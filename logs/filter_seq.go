package logs

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/record"
)

// numbers are the records that a term seq: names. A request is written as several records, and the joined record has the number
// of one of them, so the term holds for each record of their flows.
type numbers struct {
	span
	flows map[string]bool // of these records, if they are known
}

// mostNumbers bounds the records of one seq: whose flows are looked up. A larger range is of the numbers alone.
const mostNumbers = 10_000

func (n *numbers) hold(r *record.Record) bool {
	return r.Seq >= n.least && r.Seq <= n.most || r.Flow != "" && n.flows[r.Flow]
}

// seqKey checks the value of seq:, whose condition [Filter.add] makes.
func seqKey(value string, _ time.Time) (condition, bool, error) {
	s, err := parseSpan(value, parseNumber)
	return nil, s.compared, err
}

// Resolve looks up which requests the records belong to that the filter names by number, as seq:20014 does. Without it, such
// a term holds only for a request whose joined record has that number. read calls do with the records of one log from a
// number on, until do returns false.
func (f *Filter) Resolve(read func(from int64, do func(*record.Record) bool) error) error {
	for _, n := range f.numbers {
		if n.most-n.least >= mostNumbers {
			continue
		}
		n.flows = map[string]bool{}
		err := read(n.least, func(r *record.Record) bool {
			if r.Seq >= n.least && r.Seq <= n.most && r.Flow != "" {
				n.flows[strings.Clone(r.Flow)] = true
			}
			return r.Seq < n.most
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// NumberedFlows returns the ids of the flows that [Filter.Resolve] found, in order.
func (f *Filter) NumberedFlows() []string {
	all := map[string]bool{}
	for _, n := range f.numbers {
		maps.Copy(all, n.flows)
	}
	return slices.Sorted(maps.Keys(all))
}

// NamesNumbers reports whether the filter names records by number, which are those of one log.
func (f *Filter) NamesNumbers() bool { return len(f.numbers) > 0 }
