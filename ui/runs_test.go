package ui

import (
	"bytes"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/logs/source"
)

// A madeRun is a run with a signed log of its own.
type madeRun struct {
	source.Run
	key, ended string
}

// makeRun writes the log of a run that was denied evil.test a few times, and the reached host once.
func makeRun(t *testing.T, parent, id, reached string, denied int) *madeRun {
	t.Helper()
	began, code := time.Now().Add(-time.Minute), 0
	r := &madeRun{Run: source.Run{ID: id, Began: began, Sandbox: "box-" + id, Program: "make", Log: filepath.Join(parent, id), Code: &code}}
	l, err := audit.Create(r.Log, audit.Options{Keys: filepath.Join(t.TempDir(), "keys")})
	if err != nil {
		t.Fatal(err)
	}
	write := func(rest string) {
		t.Helper()
		if _, err := l.Append([]byte(`{"kind":` + rest + "}")); err != nil {
			t.Fatal(err)
		}
	}
	write(`"start","note":"started"`)
	for i := range denied {
		write(fmt.Sprintf(`"open","flow":"%s%06d","sandbox":"box-%s","via":"connect","dst":{"host":"evil.test","port":443},"decision":{"action":"deny","class":"default-deny"}`, id[len(id)-4:], i, id))
	}
	head := fmt.Sprintf(`"flow":"%s999999","sandbox":"box-%s","via":"connect","dst":{"host":"%s","port":443},"decision":{"action":"allow","rule":"r","layer":"user"}`, id[len(id)-4:], id, reached)
	write(`"open",` + head)
	write(`"close",` + head + `,"bytes":{"up":1000,"down":9},"outcome":"closed"`)
	_, r.key = l.Origin()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := verify.NewestCheckpoint(r.Log)
	if err != nil {
		t.Fatal(err)
	}
	r.ended = string(text)
	ended := time.Now()
	r.Ended = &ended
	return r
}

// runsPage opens the page of runs, the newest of which is the last.
func runsPage(t *testing.T, o Options, made *[]*madeRun) *page {
	t.Helper()
	o.Runs = func() (all []source.Run, err error) {
		for _, r := range slices.Backward(*made) {
			all = append(all, r.Run)
		}
		return all, nil
	}
	o.Key = func(dir string) (key, ended string, err error) {
		for _, r := range *made {
			if r.Log == dir {
				return r.key, r.ended, nil
			}
		}
		return "", "", nil
	}
	return opened(t, o)
}

// TestTheRunsOfAPage shows two runs in the list, together and one by one, their requests, stories and proofs.
func TestTheRunsOfAPage(t *testing.T) {
	parent := t.TempDir()
	made := []*madeRun{makeRun(t, parent, "run-AAAA", "one.test", 2), makeRun(t, parent, "run-BBBB", "two.test", 3)}
	p := runsPage(t, Options{Dir: parent}, &made)
	_, open := p.ask("GET", "/runs", nil)
	for _, want := range []string{"run-AAAA", "run-BBBB", "box-run-AAAA", "✗ 2", "✗ 3", "exit 0 after"} {
		if !strings.Contains(open, want) {
			t.Errorf("the list does not hold %q", want)
		}
	}
	for filter, want := range map[string]string{"": `"denied":5,`, "run:run-AAAA": `"denied":2,`, "run:last": `"denied":3,`, "run:run-AAAA+host:two.test": `{"counts":[],`} {
		if _, text := p.ask("GET", "/v1/counts?by=verdict&q="+filter, nil); !strings.Contains(text, want) && !strings.Contains(text, strings.TrimSuffix(want, ",")) {
			t.Errorf("%q: %s", filter, text)
		}
	}
	if answer, text := p.ask("GET", "/v1/counts?q=run:nobody", nil); answer.StatusCode != 400 {
		t.Errorf("an unknown run: %s", text)
	}
	if _, text := p.ask("GET", "/v1/records?q=host:one.test", nil); !strings.Contains(text, `"run":"run-AAAA"`) || strings.Contains(text, "two.test") {
		t.Errorf("records: %s", text)
	}
	for id, host := range map[string]string{"AAAA999999": "one.test", "BBBB999999": "two.test"} {
		if _, text := p.ask("GET", "/request/"+id, nil); !strings.Contains(text, host) || !strings.Contains(text, "?run=run-"+id[:4]) {
			t.Errorf("the story of %s does not have %s, or no proof of its run", id, host)
		}
	}
	for _, run := range []string{"run-AAAA", "run-BBBB"} {
		if answer, text := p.ask("GET", "/v1/proofs/1?run="+run, nil); answer.StatusCode != 200 {
			t.Errorf("a proof of %s: %s", run, text)
		}
	}
	if answer, _ := p.ask("GET", "/v1/proofs/1", nil); answer.StatusCode != 409 {
		t.Errorf("a proof of no run: %s", answer.Status)
	}
	if health := p.healthOf(); !strings.Contains(health, "No record was changed or removed") {
		t.Errorf("Health: %.900s", health[strings.Index(health, "<main"):])
	}
	made = append(made, makeRun(t, parent, "run-CCCC", "three.test", 1))
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if _, text := p.ask("GET", "/v1/counts?by=host&q=run:last", nil); strings.Contains(text, "three.test") {
			break
		}
		if time.Since(begin) > 10*time.Second {
			t.Fatal("the page does not find a new run")
		}
	}
	if _, text := p.ask("GET", "/runs?q=host:three.test", nil); !strings.Contains(text, "run-CCCC") {
		t.Error("the list does not have a new run")
	}
}

// TestTheLogsOfRunsAreVerified changes a record of one run, cuts the end off another, and has a third without a key.
func TestTheLogsOfRunsAreVerified(t *testing.T) {
	spoil := map[string]func(*madeRun){
		"tampered": func(r *madeRun) {
			path := filepath.Join(r.Log, "00000001.log")
			text, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, bytes.Replace(text, []byte("evil.test"), []byte("good.test"), 1), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		"truncated": func(r *madeRun) { // as somebody with the key would
			other := makeRun(t, t.TempDir(), r.ID, "one.test", 1)
			r.Log, r.key = other.Log, other.key
		},
		"unknown": func(r *madeRun) { r.key = "" },
	}
	for want, change := range spoil {
		parent := t.TempDir()
		made := []*madeRun{makeRun(t, parent, "run-AAAA", "one.test", 2), makeRun(t, parent, "run-BBBB", "two.test", 3)}
		change(made[0])
		p := runsPage(t, Options{Dir: parent}, &made)
		health := p.healthOf()
		if strings.Contains(health, "No record was changed") || !strings.Contains(health, "run run-AAAA: ") {
			t.Errorf("%s: Health says %.900s", want, health[strings.Index(health, "<main"):])
		}
		if _, text := p.ask("GET", "/runs", nil); strings.Count(text, "<td>good</td>") != 1 || want != "truncated" && !strings.Contains(text, "<td>"+want+"</td>") {
			t.Errorf("%s: the list does not say so", want)
		}
	}
}

// TestTheRunsPageWritesThePolicyFile allows a host from the row of a run, in the policy file that the run named.
func TestTheRunsPageWritesThePolicyFile(t *testing.T) {
	parent, path := t.TempDir(), filepath.Join(t.TempDir(), "egressd.yaml")
	if err := os.WriteFile(path, []byte("version: 1\nallow: [one.test]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	made := []*madeRun{makeRun(t, parent, "run-AAAA", "one.test", 2)}
	made[0].Policy = path
	p := runsPage(t, Options{Dir: parent, HasPolicy: true}, &made)
	_, text := p.ask("GET", "/destinations?q=host:evil.test", nil)
	_, link, found := strings.Cut(text, `<a class="act" href="/act?`)
	if link, _, _ = strings.Cut(link, `"`); !found {
		t.Fatal("Destinations does not offer to allow the denied host")
	}
	_, text = p.ask("GET", "/act?"+html.UnescapeString(link), nil)
	if status, text := p.post("/act", form(t, text, "save")); status != 303 {
		t.Fatalf("%d: %s", status, text)
	}
	if written, err := os.ReadFile(path); err != nil || !strings.Contains(string(written), "evil.test:443") {
		t.Errorf("the file is %q, %v", written, err)
	}
}
