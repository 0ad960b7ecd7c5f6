// Package logs reads what the audit log says: it decodes the lines, joins
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
package logs

import (
	"encoding/json"
	"fmt"

	"github.com/egressd/egressd/egress"
)

// Decode reads one line of the log. The record is the caller's to keep.
func Decode(line []byte) (*egress.Record, error) {
	var c canonical
	s := new(slot)
	if err := c.decode(s, string(line)); err != nil {
		return nil, err
	}
	return &s.Record, nil
}

// decode reads a line into s.
func (c *canonical) decode(s *slot, line string) error {
	if !c.read(s, line) {
		*s = slot{lists: s.lists}
		if err := json.Unmarshal([]byte(line), &s.Record); err != nil {
			return fmt.Errorf("a line of the audit log is not a record: %w", err)
		}
	}
	if s.Kind == "" {
		return fmt.Errorf("record %d of the audit log has no kind", s.Seq)
	}
	return nil
}
