// Package records reads what the audit log says: it decodes the lines, joins
// the two records of a flow, filters, and counts what records have in common.
// It knows no terminal, opens no file and decides nothing; whoever shows a
// record escapes it for the place where it is shown.
//
//	decisions := records.Tally{Emit: func(r *egress.Record) {
//		if filter.Match(r) {
//			view.Add(r)
//		}
//	}}
//	for each line of the log {
//		r, err := records.Decode(line)
//		decisions.Add(r)
//	}
//	decisions.Flush(records.OutcomeOpen)
package records

import (
	"encoding/json"
	"fmt"

	"github.com/egressd/egressd/egress"
)

// Decode reads one stored line.
func Decode(text []byte) (*egress.Record, error) {
	var r egress.Record
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("a line of the audit log is not a record: %w", err)
	}
	if r.Kind == "" {
		return nil, fmt.Errorf("record %d of the audit log has no kind", r.Seq)
	}
	return &r, nil
}
