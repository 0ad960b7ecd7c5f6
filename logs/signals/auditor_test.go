package signals_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/record"
)

// TestALogForAnAuditor writes a signed log of four days, in which some thefts of a seed that nobody chose are planted, for a person who plays
// the auditor. EGRESSD_SIGNALS_AUDITOR=DIR is the folder: the log is in log, its key in key, and the answers in answers.txt, which is
// not to be opened before the questions are answered. In a third of the logs, a byte was changed afterwards.
func TestALogForAnAuditor(t *testing.T) {
	dir, records := os.Getenv("EGRESSD_SIGNALS_AUDITOR"), 30_000
	seed := uint64(time.Now().UnixNano())
	if dir == "" {
		dir, records, seed = t.TempDir(), 600, heldOutSeed(0)
	}
	w := newWorld7(seed)
	w.ordinary(records)
	kinds := w.Perm(len(thefts7))[:3+w.IntN(3)]
	var plans []planted
	var stolen [][]*record.Record
	for _, i := range kinds {
		before := len(w.out)
		plans = append(plans, thefts7[i].plant(w))
		stolen = append(stolen, slices.Clone(w.out[before:]))
	}
	all := w.finish()
	asWritten(all)
	var answers bytes.Buffer
	for n, i := range kinds {
		var up int64
		first, last := stolen[n][0], stolen[n][0]
		for _, r := range stolen[n] {
			if r.Bytes != nil {
				up += r.Bytes.Up
			}
			if r.Time.Before(first.Time) {
				first = r
			}
			if r.Time.After(last.Time) {
				last = r
			}
		}
		fmt.Fprintf(&answers, "%s: %+v, %d bytes up, %s to %s, first id %s, rule %s\n", thefts7[i].name, plans[n], up, first.Time.UTC(), last.Time.UTC(), first.Flow, last.Decision.Rule)
	}
	fmt.Fprintf(&answers, "denied most: %s\n", deniedMost(all))
	key := writeSigned(t, filepath.Join(dir, "log"), all)
	if changed := w.chance(1. / 3); changed {
		changeByte(t, filepath.Join(dir, "log"), w.IntN(len(all)))
		fmt.Fprintln(&answers, "a byte was changed")
	}
	for name, text := range map[string]string{"key": key, "answers.txt": answers.String()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := 0
	lines, err := audit.NewReader(filepath.Join(dir, "log"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lines.Close()
	for r, err := lines.Next(); err == nil; r, err = lines.Next() {
		if _, err := record.Decode(r); err != nil {
			t.Fatal(err)
		}
		read++
	}
	if read < len(all) {
		t.Errorf("%d of %d records are in the log", read, len(all))
	}
	id := ""
	for _, r := range all {
		if flow, ok := record.ParseID(r.Flow); !ok || r.Flow < id && flow.Time().After(r.Time) {
			t.Fatalf("the id %s of %s is out of order", r.Flow, r.Time)
		}
		id = max(id, r.Flow)
	}
}

// asWritten moves the records to the days before today, and gives their flows ids as egressd does, by time. The ids that the worlds
// count tell what was planted last.
func asWritten(all []*record.Record) {
	shift := time.Since(all[len(all)-1].Time).Truncate(24 * time.Hour) // so that the last day is yesterday or today
	ids := map[string]string{}
	next := record.ID(0)
	for _, r := range all {
		r.Time = r.Time.Add(shift)
		if r.Flow == "" {
			continue
		}
		if ids[r.Flow] == "" {
			next = max(next+1, record.ID(r.Time.UnixNano()/int64(record.IDTick)))
			ids[r.Flow] = next.String()
		}
		r.Flow = ids[r.Flow]
	}
}

// deniedMost is the host with the most denied requests, one for each connection or lookup of it.
func deniedMost(all []*record.Record) (host string) {
	n := map[string]int64{}
	decisions := logs.DecisionJoiner{Emit: func(r *record.Record) {
		if r.Decision != nil && r.Decision.Action == "deny" {
			n[logs.Host(r)] += r.Times()
		}
	}}
	for _, r := range all {
		decisions.Add(r)
	}
	decisions.Flush(logs.OutcomeOpen)
	hosts := make([]string, 0, len(n))
	for host := range n {
		hosts = append(hosts, host)
	}
	slices.SortFunc(hosts, func(a, b string) int { return int(n[b] - n[a]) })
	text := ""
	for _, host := range hosts[:min(2, len(hosts))] {
		text += fmt.Sprint(host, " ", n[host], " ")
	}
	return text
}

// writeSigned writes the records through the audit log, which stamps them by the clock of a bubble.
func writeSigned(t *testing.T, dir string, all []*record.Record) (key string) {
	keys := filepath.Join(t.TempDir(), "keys")
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(all[0].Time.Add(-time.Minute)))
		l, err := audit.Create(dir, audit.Options{Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Append([]byte(`{"kind":"start","note":"egressd started"}`)); err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			time.Sleep(time.Until(r.Time))
			if _, err := l.Append(unstamped(t, r)); err != nil {
				t.Fatal(err)
			}
		}
		_, key = l.Origin()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
	return key
}

// unstamped is the text of a record without what the audit log adds.
func unstamped(t *testing.T, r *record.Record) []byte {
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := bytes.Cut(text, []byte(`"kind":`))
	if !found {
		t.Fatalf("%s", text)
	}
	return append([]byte(`{"kind":`), rest...)
}

// changeByte changes a digit of one record.
func changeByte(t *testing.T, dir string, n int) {
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(text, []byte(`"seq":`+strconv.Itoa(n)+`,`))
	if at < 0 {
		return
	}
	if i := bytes.IndexByte(text[at:], 'Z'); i > 0 {
		text[at+i-1] = '0' + (text[at+i-1]-'0'+1)%10
	}
	if err := os.WriteFile(files[0], text, 0o600); err != nil {
		t.Fatal(err)
	}
}
