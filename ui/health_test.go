package ui

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/internal/hint"
)

// healthOf returns the view Health once what it began has ended.
func (p *page) healthOf() string {
	p.t.Helper()
	for begin := time.Now(); time.Since(begin) < 10*time.Second; {
		_, text := p.ask("GET", "/health", nil)
		if text = ours.ReplaceAllString(text, ""); !strings.Contains(text, "data-reading") {
			return html.UnescapeString(text)
		}
	}
	p.t.Fatal("it does not end")
	return ""
}

// TestHealthTestsTheSandbox asks for a self-test in which no escape works, one in which an escape works, and one that
// cannot be made.
func TestHealthTestsTheSandbox(t *testing.T) {
	var tried []Escape
	var failed error
	p := opened(t, Options{Dir: logOf(t), Selftest: func(context.Context) ([]Escape, error) { return tried, failed }})
	if text := p.healthOf(); strings.Contains(text, "escapes worked") || strings.Contains(text, "No escape") {
		t.Error("it tells of a self-test that nobody asked for")
	}
	for _, row := range []struct {
		tried  []Escape
		failed error
		want   []string
	}{
		{[]Escape{{Name: "raw sockets"}, {Name: "privileges"}}, nil, []string{"No escape of 2 worked", "✓ raw sockets"}},
		{[]Escape{{Name: "raw sockets"}, {Name: "privileges", Escaped: "CAP_<b>"}}, nil, []string{"1 of 2 escapes worked", "✗ privileges: CAP_<b>", "<details open>"}},
		{nil, hint.Failed(errors.New("no <namespace>"), "egressd doctor"), []string{"Not tested: no <namespace>", "egressd doctor"}},
	} {
		tried, failed = row.tried, row.failed
		if answer, _ := p.ask("POST", "/health/selftest", map[string]string{"body": "csrf=" + p.guard.csrf}); answer.StatusCode != 303 {
			t.Fatalf("%v: %s", row, answer.Status)
		}
		text := p.healthOf()
		for _, want := range row.want {
			if !strings.Contains(text, want) {
				t.Errorf("%v: Health does not hold %q", row, want)
			}
		}
	}
	if answer, _ := p.ask("POST", "/health/selftest", map[string]string{"body": "x=y"}); answer.StatusCode != 403 {
		t.Errorf("a forged form: %s", answer.Status)
	}
	other := opened(t, Options{Dir: p.options.Dir})
	if answer, _ := other.ask("POST", "/health/selftest", map[string]string{"body": "csrf=" + other.guard.csrf}); answer.StatusCode != 404 || strings.Contains(other.healthOf(), "Self-test") {
		t.Errorf("the log of another machine: %s", answer.Status)
	}
}

// TestWhatIsUnknownIsNoAccusation looks at a log that is not signed, at a signed one without its key and with another key,
// at a whole one, and at a changed one.
func TestWhatIsUnknownIsNoAccusation(t *testing.T) {
	const changed, unknown = "Somebody changed this log", "Nobody can tell whether this log was changed"
	plain := logOf(t)
	signed, key := signedLog(t)
	_, other := signedLog(t)
	spoiled, itsKey := signedLog(t)
	path := filepath.Join(spoiled, "00000001.log")
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(strings.Replace(string(text), "first", "worst", 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		says, dir, key, notice, health string
	}{
		{"not signed", plain, "", unknown, "Not verified: the log is not signed"},
		{"signed, and no key", signed, "", unknown, "Not verified: no key is known"},
		{"another key", signed, other, unknown, "Not verified: the log is signed by another key"},
		{"whole", signed, key, "", "No record was changed or removed"},
		{"changed", spoiled, itsKey, changed, "tampered"},
		{"changed, and no key", spoiled, "", changed, "tampered"},
	} {
		p := opened(t, Options{Dir: row.dir, Key: func(string) (string, string, error) { return row.key, "", nil }})
		if health := p.healthOf(); !strings.Contains(health, row.health) {
			t.Errorf("%s: Health does not hold %q: %.900s", row.says, row.health, health[strings.Index(health, "<main"):])
		}
		if health, own := p.healthOf(), row.dir == spoiled; row.dir != plain && (strings.Contains(health, "The newest checkpoint") == own || strings.Contains(health, "The last checkpoint that holds") != own) {
			t.Errorf("%s: the checkpoint of Health: %s", row.says, health[strings.Index(health, "<main"):])
		}
		_, text := p.ask("GET", "/sent", nil)
		for _, notice := range []string{changed, unknown} {
			if strings.Contains(text, notice) != (notice == row.notice) {
				t.Errorf("%s: a view that holds %q: %t", row.says, notice, notice != row.notice)
			}
		}
	}
}

// signedLog writes a signed log of three notes.
func signedLog(t *testing.T) (dir, key string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "audit")
	l, err := audit.Create(dir, audit.Options{Keys: filepath.Join(t.TempDir(), "keys")})
	if err != nil {
		t.Fatal(err)
	}
	for _, note := range []string{"the first", "the second", "the third"} {
		if _, err := l.Append(fmt.Appendf(nil, `{"kind":"start","note":"%s"}`, note)); err != nil {
			t.Fatal(err)
		}
	}
	_, key = l.Origin()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, key
}

// TestEventsResumeByNumber leaves the event stream and comes back with the number of the last event: it is told of what was
// written meanwhile, and of nothing before.
func TestEventsResumeByNumber(t *testing.T) {
	p := opened(t, Options{Dir: logOf(t)})
	next := func(last string) string {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, "GET", "http://"+p.address+eventsPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = p.guard.host
		r.Header.Set("Cookie", p.cookie)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		if last != "" {
			r.Header.Set("Last-Event-ID", last)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
			if id, found := strings.CutPrefix(lines.Text(), "id: "); found {
				return id
			}
			if lines.Text() == ": still here" {
				return "nothing new"
			}
		}
		return "the end"
	}
	first := next("")
	if again := next(first); first == "" || again != "nothing new" {
		t.Errorf("the first event is %q, and after it comes %q", first, again)
	}
	f, err := os.OpenFile(filepath.Join(p.options.Dir, "00000001.log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := fmt.Fprintf(f, `{"v":1,"seq":%s,"time":"2026-11-20T10:00:00.000000Z","kind":"stop"}`+"\n", first); err != nil {
		t.Fatal(err)
	}
	var seq int64
	_, _ = fmt.Sscan(first, &seq)
	if later := next(first); later != "nothing new" && later != fmt.Sprint(seq+1) {
		t.Errorf("after a record, the event is %q", later)
	}
	for begin := time.Now(); next(first) != fmt.Sprint(seq+1); {
		if time.Since(begin) > 10*time.Second {
			t.Fatal("nobody is told of the record")
		}
	}
}
