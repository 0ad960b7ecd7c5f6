package audit

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/audit/verify"
)

// A stored log is what a store has got of a log, and what vouches for it.
type storedLog struct {
	origin, key string
	lines       [][]byte
	notes       []byte
}

// storedLogOf writes a log of 40 records, with heartbeats at some, and a checkpoint in the middle and at the end.
func storedLogOf(t *testing.T, follows string, had int64) storedLog {
	t.Helper()
	var s storedLog
	l, err := Create(filepath.Join(t.TempDir(), "log"), Options{Durability: Process})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s.origin, s.key = l.Origin()
	for i := range 40 {
		text := fmt.Appendf(nil, `{"kind":"open","flow":"F%d"}`, i)
		if i%10 == 5 {
			size, root := l.Tree()
			text = fmt.Appendf(nil, `{"kind":"heartbeat","log":{"origin":%q,"size":%d,"root":%q`, s.origin, size, root)
			if follows != "" {
				text = fmt.Appendf(text, `,"follows":%q,"had":%d`, follows, had)
			}
			text = append(text, "}}"...)
		}
		if _, err := l.Append(text); err != nil {
			t.Fatal(err)
		}
		if i == 19 || i == 39 {
			note, err := l.Checkpoint()
			if err != nil {
				t.Fatal(err)
			}
			s.notes = append(append(s.notes, note...), '\n')
		}
	}
	r, err := NewReader(l.dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for line, err := r.Next(); err == nil; line, err = r.Next() {
		s.lines = append(s.lines, bytes.Clone(line))
	}
	if len(s.lines) != 40 {
		t.Fatalf("%d lines", len(s.lines))
	}
	return s
}

func (s *storedLog) verify(t *testing.T, lines [][]byte, keys []string, notes []byte) verify.RowsReport {
	t.Helper()
	var rows verify.Rows
	for _, line := range lines {
		rows.Add(line, s.origin)
	}
	all, err := rows.Verify(keys, notes)
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	return all[0]
}

func TestRowsOfALogAreJudged(t *testing.T) {
	s := storedLogOf(t, "", 0)
	other := storedLogOf(t, "", 0)
	without := func(seq int) [][]byte { return slices.Delete(slices.Clone(s.lines), seq, seq+1) }
	with := func(seq int, line []byte) [][]byte {
		all := slices.Clone(s.lines)
		all[seq] = line
		return all
	}
	edited := bytes.Replace(s.lines[12], []byte("F12"), []byte("F99"), 1)
	beaten := bytes.Replace(s.lines[25], []byte(`"size":25`), []byte(`"size":24`), 1)
	reversed := slices.Clone(s.lines)
	slices.Reverse(reversed)
	spans := func(all []verify.RowSpan) string { return verify.Spans(all) }
	for says, row := range map[string]struct {
		lines                 [][]byte
		notes                 []byte
		code                  int
		changed, missing, cut string
		doubled, unvouched    int64
	}{
		"whole":                        {lines: s.lines, notes: s.notes, cut: "[]"},
		"in another order":             {lines: reversed, notes: s.notes, cut: "[]"},
		"twice":                        {lines: slices.Concat(s.lines, s.lines[3:9]), notes: s.notes, doubled: 6, cut: "[]"},
		"without a record":             {lines: without(12), notes: s.notes, code: verify.Truncated, missing: "12", unvouched: 40, cut: "[]"},
		"without the first":            {lines: s.lines[7:], notes: s.notes, code: verify.Truncated, missing: "0 to 6", unvouched: 40, cut: "[]"},
		"without the end":              {lines: s.lines[:30], notes: s.notes, code: verify.Truncated, missing: "30 to 39", unvouched: 10, cut: "[]"},
		"with a changed record":        {lines: with(12, edited), notes: s.notes, code: verify.Tampered, changed: "5 to 15", unvouched: 40, cut: "[]"},
		"with a changed heartbeat":     {lines: with(25, beaten), notes: s.notes, code: verify.Tampered, changed: "20 to 25", unvouched: 20, cut: "[]"},
		"with two of one":              {lines: append(slices.Clone(s.lines), edited), notes: s.notes, code: verify.Tampered, changed: "12", cut: "[]"},
		"with a record that is cut":    {lines: with(12, s.lines[12][:50]), notes: s.notes, code: verify.Truncated, cut: "[12]", unvouched: 40},
		"with one that is a rest":      {lines: with(12, s.lines[12][20:]), notes: s.notes, code: verify.Tampered, missing: "12", unvouched: 40, cut: "[]"},
		"with a record of another log": {lines: with(15, other.lines[15]), notes: s.notes, code: verify.Tampered, changed: "15", unvouched: 40 - 0, cut: "[]"},
		"without checkpoints":          {lines: s.lines, unvouched: 40, cut: "[]"},
		"changed without checkpoints":  {lines: with(12, edited), code: verify.Tampered, changed: "5 to 15", unvouched: 40, cut: "[]"},
		"with those of another log":    {lines: s.lines, notes: other.notes, unvouched: 40, cut: "[]"},
	} {
		for _, keys := range [][]string{nil, {other.key, s.key}} {
			r := s.verify(t, row.lines, keys, row.notes)
			if r.Code != row.code || spans(r.Changed) != row.changed || spans(r.Missing) != row.missing || fmt.Sprint(r.Cut) != row.cut || r.Doubled != row.doubled || r.Unvouched != row.unvouched {
				t.Errorf("%s: %+v", says, r)
			}
		}
	}
}

// TestACheckpointOfRowsNeedsTheKey has a checkpoint of the log that somebody else has signed.
func TestACheckpointOfRowsNeedsTheKey(t *testing.T) {
	s, other := storedLogOf(t, "", 0), storedLogOf(t, "", 0)
	forged := bytes.ReplaceAll(other.notes, []byte(other.origin), []byte(s.origin))
	if r := s.verify(t, s.lines, []string{s.key}, forged); r.Code != verify.Unknown || r.UnknownKeys != 2 || r.Checkpoints != 0 {
		t.Errorf("%+v", r)
	}
	if r := s.verify(t, s.lines, nil, forged); r.Code != verify.Tampered { // without a key it counts as it is
		t.Errorf("%+v", r)
	}
}

// TestRowsOfThreeMachines has a machine whose log was begun anew, which says how long the first one was.
func TestRowsOfThreeMachines(t *testing.T) {
	a, b := storedLogOf(t, "", 0), storedLogOf(t, "", 0)
	anew := storedLogOf(t, b.origin, 40)
	var rows verify.Rows
	for _, s := range []storedLog{a, b, anew} {
		lines := s.lines
		if s.origin == b.origin {
			lines = lines[:33] // and the end of the first one is gone
		}
		for _, line := range lines {
			rows.Add(line, s.origin)
		}
	}
	all, err := rows.Verify(nil, nil)
	if err != nil || len(all) != 3 {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, r := range all {
		switch r.Origin {
		case a.origin:
			if r.Code != verify.Good || r.Follows+r.FollowedBy != "" {
				t.Errorf("%+v", r)
			}
		case b.origin:
			if r.Code != verify.Truncated || verify.Spans(r.Missing) != "33 to 39" || r.FollowedBy != anew.origin {
				t.Errorf("%+v", r)
			}
		case anew.origin:
			if r.Code != verify.Good || r.Follows != b.origin {
				t.Errorf("%+v", r)
			}
		}
	}
	if names := strings.Count(fmt.Sprint(all), "egressd/"); names != 5 {
		t.Errorf("%d names", names)
	}
}
