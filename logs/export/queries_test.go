package export

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// queriesOf returns the queries of docs/how-to/query-the-log.md in a language, in their order.
func queriesOf(t *testing.T, language string) (all []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/how-to/query-the-log.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		all = append(all, m[1])
	}
	return all
}

// An incident is what three machines have recorded: the first sent much to evil.test from the sandbox ci, the second was denied
// 300 times in a minute, and the third lacks a record and is silent since. The first has had a newer policy since.
type incident struct {
	began time.Time
	lines map[string][]string // stored lines by origin
}

var incidentMachines = []string{"egressd/" + strings.Repeat("a1", 16), "egressd/" + strings.Repeat("b2", 16), "egressd/" + strings.Repeat("c3", 16)}

func newIncident(began time.Time) *incident {
	w := &incident{began.UTC().Truncate(time.Minute), map[string][]string{}}
	a, b, c := incidentMachines[0], incidentMachines[1], incidentMachines[2]
	w.add(a, 0, 0, `"kind":"start","note":"n"`)
	w.flow(a, 1, 5, "ci", "good.test", 100)
	w.flow(a, 3, 10, "ci", "evil.test", 5_000_000)
	w.flow(a, 5, 12, "web", "good.test", 200)
	w.add(a, 7, 60, `"kind":"heartbeat","log":{"origin":"`+a+`","size":7,"root":"x"}`)
	w.add(a, 8, 61, `"kind":"policy","decision":{"policy":"sha256:1","rules":"1111","revision":"r1"},"note":"n"`)
	w.add(a, 9, 90, `"kind":"policy","decision":{"policy":"sha256:2","rules":"2222","revision":"r2"},"note":"n"`)
	w.add(a, 10, 91, `"kind":"heartbeat","decision":{"policy":"sha256:2","rules":"2222","revision":"r2"},"log":{"origin":"`+a+`","size":10,"root":"x"}`)
	w.add(b, 0, 20, `"kind":"open","flow":"B","sandbox":"ci","dst":{"host":"evil.test","port":443},"decision":{"action":"deny","layer":"user","class":"default-deny"}`)
	w.add(b, 1, 20, `"kind":"open","flow":"B","count":299,"sandbox":"ci","dst":{"host":"evil.test","port":443},"decision":{"action":"deny","layer":"user","class":"default-deny"}`)
	w.add(b, 2, 60, `"kind":"heartbeat","log":{"origin":"`+b+`","size":2,"root":"x"}`)
	w.add(b, 3, 62, `"kind":"policy","decision":{"policy":"sha256:1","rules":"1111","revision":"r1"},"note":"n"`)
	w.flow(c, 0, 1, "ci", "good.test", 50)
	w.add(c, 3, 30, `"kind":"heartbeat","log":{"origin":"`+c+`","size":3,"root":"x"}`)
	return w
}

func (w *incident) add(origin string, seq, minute int, members string) {
	at := w.began.Add(time.Duration(minute) * time.Minute).Format("2006-01-02T15:04:05.000000Z")
	w.lines[origin] = append(w.lines[origin], fmt.Sprintf(`{"v":1,"seq":%d,"time":%q,%s}`, seq, at, members))
}

// flow adds a flow of an allowed tunnel.
func (w *incident) flow(origin string, seq, minute int, sandbox, host string, up int) {
	about := fmt.Sprintf(`"flow":"F%d","sandbox":%q,"dst":{"host":%q,"port":443},"decision":{"action":"allow","layer":"user"}`, seq, sandbox, host)
	w.add(origin, seq, minute, `"kind":"open",`+about)
	w.add(origin, seq+1, minute, fmt.Sprintf(`"kind":"close",%s,"bytes":{"up":%d,"down":1},"duration_ms":1,"outcome":"closed"`, about, up))
}

// each calls do with each record of the incident twice, as a sink does that sends again.
func (w *incident) each(t *testing.T, do func(r *record.Record, line []byte, from Origin)) {
	t.Helper()
	for i, origin := range incidentMachines {
		lines := w.lines[origin]
		for _, line := range slices.Concat(lines, lines) {
			r, err := record.Decode([]byte(line))
			if err != nil {
				t.Fatal(err)
			}
			do(r, []byte(line), Origin{Version: "1", Host: fmt.Sprintf("m%d", i), Log: origin})
		}
	}
}

// A row is one of an answer: the texts of its columns.
type row map[string]string

// checkIncident compares the answers to the questions with the incident. The names of columns are as on the page; in
// LogsQL they have the names of the attributes.
func checkIncident(t *testing.T, answers [][]row, name func(string) string) {
	t.Helper()
	a, b, c := incidentMachines[0], incidentMachines[1], incidentMachines[2]
	get := func(question, i int, column string) string {
		if question >= len(answers) || i >= len(answers[question]) {
			t.Fatalf("question %d has no row %d: %v", question, i, answers)
		}
		return answers[question][i][name(column)]
	}
	if len(answers) != 6 || len(answers[0]) != 1 || get(0, 0, "origin") != a || get(0, 0, "sandbox") != "ci" || get(0, 0, "times") != "1" || !strings.Contains(get(0, 0, "first"), ":") {
		t.Errorf("who reached it: %v", answers[0])
	}
	if len(answers[1]) != 2 || get(1, 0, "host") != "evil.test" || get(1, 1, "host") != "good.test" {
		t.Errorf("seen first: %v", answers[1])
	}
	if get(2, 0, "up") != "5000000" || get(2, 0, "sandbox") != "ci" || get(2, 0, "host") != "evil.test" || len(answers[2]) != 4 {
		t.Errorf("bytes up: %v", answers[2])
	}
	if len(answers[3]) != 1 || get(3, 0, "origin") != b || get(3, 0, "denied") != "300" {
		t.Errorf("bursts: %v", answers[3])
	}
	if len(answers[4]) != 3 || get(4, 0, "origin") != c || get(4, 0, "lacking") != "1" || get(4, 1, "lacking") != "0" || get(4, 2, "lacking") != "0" {
		t.Errorf("gaps and silence: %v", answers[4])
	}
	for i, want := range []row{{"origin": a, "revision": "r2", "rules": "2222"}, {"origin": a, "revision": "r1", "rules": "1111"}, {"origin": b, "revision": "r1", "rules": "1111"}} {
		for column, text := range want {
			if got := get(5, i, column); got != text || len(answers[5]) != 3 {
				t.Errorf("which policy: row %d has %s %q, not %q: %v", i, column, got, text, answers[5])
			}
		}
	}
}

// TestTheQueriesInSQL runs the queries of the page in SQLite, over rows that are imported as the page says. A record that came
// twice counts once.
func TestTheQueriesInSQL(t *testing.T) {
	dir := t.TempDir()
	var rows []byte
	newIncident(time.Now().Add(-2*time.Hour)).each(t, func(r *record.Record, line []byte, from Origin) { rows = JSON(rows, r, line, from) })
	if err := os.WriteFile(filepath.Join(dir, "rows.jsonl"), rows, 0o600); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/how-to/query-the-log.md")
	if err != nil {
		t.Fatal(err)
	}
	load := regexp.MustCompile(`(?m)^\$ (sqlite3 .*)$`).FindSubmatch(page)
	if load == nil {
		t.Fatal("the page does not say how rows are loaded")
	}
	sh := func(input string, command ...string) []byte {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Dir, cmd.Stdin = dir, strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v: %s", command, err, out)
		}
		return out
	}
	sh("", "sh", "-c", string(load[1]))
	queries := queriesOf(t, "sql")
	if len(queries) != 7 {
		t.Fatalf("%d queries", len(queries))
	}
	sh(queries[0], "sqlite3", "rows.db")
	var answers [][]row
	for _, q := range queries[1:] {
		var found []map[string]any
		if err := json.Unmarshal(sh(q, "sqlite3", "-json", "rows.db"), &found); err != nil {
			t.Fatal(err)
		}
		var answer []row
		for _, one := range found {
			texts := row{}
			for column, value := range one {
				if n, ok := value.(float64); ok {
					value = fmt.Sprintf("%.0f", n)
				}
				texts[column] = fmt.Sprint(value)
			}
			answer = append(answer, texts)
		}
		answers = append(answers, answer)
	}
	checkIncident(t, answers, func(column string) string { return column })
}
