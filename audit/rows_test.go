package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
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

// TestBothVerifiersAgreeAboutRows changes the rows of three logs at random, one of them begun anew, and has docs/verify/verify.py judge them,
// too. EGRESSD_AUDIT_MUTATIONS is how many times.
func TestBothVerifiersAgreeAboutRows(t *testing.T) {
	a, b := storedLogOf(t, "", 0), storedLogOf(t, "", 0)
	logs := []storedLog{a, b, storedLogOf(t, b.origin, 40)}
	random := rand.New(rand.NewPCG(7, uint64(len(a.lines))))
	times, err := strconv.Atoi(os.Getenv("EGRESSD_AUDIT_MUTATIONS"))
	if err != nil {
		times = 200
	}
	dir := t.TempDir()
	var files []string
	var mine [][]verify.RowsReport
	for i := range times {
		type row struct{ origin, line string }
		var all []row
		var notes []byte
		var keys []string
		for _, s := range logs {
			for _, line := range s.lines {
				all = append(all, row{s.origin, string(line)})
			}
			if random.IntN(3) > 0 {
				notes = append(notes, s.notes...)
			}
			if random.IntN(2) > 0 {
				keys = append(keys, s.key)
			}
		}
		for range random.IntN(4) {
			at, other := random.IntN(len(all)), random.IntN(len(all))
			switch random.IntN(8) {
			case 0: // gone
				all = slices.Delete(all, at, at+1)
			case 1: // changed
				all[at].line = strings.Replace(all[at].line, `"flow":"F`, `"flow":"G`, 1)
			case 2: // there twice
				all = append(all, all[at])
			case 3: // cut
				all[at].line = all[at].line[:random.IntN(len(all[at].line))]
			case 4: // of another log
				all[at].origin = all[other].origin
			case 5: // an end cut
				all = slices.DeleteFunc(all, func(r row) bool { return r.origin == all[at].origin && len(all) > 60 && r.line > all[at].line })
			case 6: // without the name of its log
				all[at].origin = ""
			case 7:
				all[at].line = flipBit(random, all[at].line)
			}
		}
		if random.IntN(5) == 0 { // nobody says which log it is
			all = slices.DeleteFunc(all, func(r row) bool { return r.origin != a.origin })
			for j := range all {
				all[j].origin = ""
			}
		}
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		var rows verify.Rows
		var text []byte
		for _, r := range all {
			quoted, err := json.Marshal(map[string]string{"event.original": r.line, "egressd.origin": r.origin})
			if err != nil {
				t.Fatal(err)
			}
			text = append(append(text, quoted...), '\n')
			if strings.HasPrefix(r.line, `{"v":1,"seq":`) { // else it is a row without a record
				rows.Add([]byte(strings.ToValidUTF8(r.line, "\uFFFD")), r.origin)
			}
		}
		path := filepath.Join(dir, fmt.Sprint(i))
		for name, text := range map[string][]byte{"": text, ".notes": notes, ".keys": []byte(strings.Join(keys, "\n"))} {
			if err := os.WriteFile(path+name, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if len(keys) == 0 {
			os.Remove(path + ".keys")
		}
		if len(notes) == 0 {
			os.Remove(path + ".notes")
		}
		found, err := rows.Verify(keys, notes)
		if err != nil {
			t.Fatal(err)
		}
		files, mine = append(files, path), append(mine, found)
	}
	const driver = `
import importlib.util, json, os, sys
spec = importlib.util.spec_from_file_location("verify", sys.argv[1])
v = importlib.util.module_from_spec(spec); spec.loader.exec_module(v)
for path in sys.stdin.read().split():
    keys = open(path + ".keys").read() if os.path.exists(path + ".keys") else None
    print(json.dumps(v.check_rows(path, keys, [path + ".notes"] if os.path.exists(path + ".notes") else []).more.get("logs", [])))
`
	cmd := exec.Command("python3", "-c", driver, filepath.Join("..", "docs", "verify", "verify.py"))
	cmd.Stdin = strings.NewReader(strings.Join(files, "\n"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	theirs := json.NewDecoder(bytes.NewReader(out))
	codes := map[int]int{}
	for i, path := range files {
		var found []verify.RowsReport
		if err := theirs.Decode(&found); err != nil {
			t.Fatal(err)
		}
		for j := range mine[i] {
			codes[mine[i][j].Code]++
			slices.SortFunc(mine[i][j].Changed, func(a, b verify.RowSpan) int { return int(a.From - b.From) })
		}
		if !reflect.DeepEqual(found, mine[i]) && len(found)+len(mine[i]) > 0 {
			t.Fatalf("%s:\n%+v\n%+v", path, mine[i], found)
		}
	}
	if codes[verify.Good] == 0 || codes[verify.Tampered] == 0 || codes[verify.Truncated] == 0 {
		t.Errorf("of each verdict so many: %v", codes)
	}
}
