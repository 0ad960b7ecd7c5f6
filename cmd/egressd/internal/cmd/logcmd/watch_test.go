package logcmd

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/index"
)

// watchDaemon answers what watch asks, and notes what it changes.
type watchDaemon struct{ asked []string }

func (d *watchDaemon) Send(_ context.Context, method, path string, body, v any, _ ...int) (int, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	if method != "GET" {
		d.asked = append(d.asked, method+" "+path+" "+string(text))
	}
	answer := `{}`
	if path == "/v1/questions" {
		answer = `{"open":true,"questions":[{"id":"01KB6ZQ4SZ","state":"pending","sandbox":"ci","host":"asked.test","port":443,"method":"POST","path":"/\u001b[2Jx","rule":"uploads"},{"id":"01KB6ZQ4ST","state":"approved","host":"old.test"}]}`
	}
	return 200, json.Unmarshal([]byte(answer), v)
}

const watchedLog = `{"v":1,"seq":0,"time":"2026-11-20T09:00:00.000000Z","kind":"start"}
{"v":1,"seq":1,"time":"2026-11-20T09:00:01.000000Z","kind":"open","flow":"01KB000001","sandbox":"ci","via":"connect","dst":{"host":"denied.example","port":443},"process":{"pid":7,"exe":"/bin/\u202egpj.curl","argv":["curl"]},"decision":{"action":"deny","rule":"default","layer":"builtin","class":"default-deny","reason":"no rule allows it"}}
{"v":1,"seq":2,"time":"2026-11-20T09:00:02.000000Z","kind":"open","flow":"01KB000002","sandbox":"ci","via":"connect","dst":{"host":"a-host-with-a-long-name-that-does-not-fit.into.a.column.of.a.narrow.window.example.com","port":443},"decision":{"action":"allow","rule":"long","layer":"user"}}
`

// watched returns a watch of a log, beside a daemon, with everything read.
func watched(t *testing.T) (*watch, *watchDaemon) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "00000001.log"), []byte(watchedLog), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	x := index.New()
	ended := make(chan error, 1)
	go func() { ended <- x.Follow(ctx, dir) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	for {
		p, changed := x.Progress()
		if p.CaughtUp {
			break
		}
		<-changed
	}
	d := &watchDaemon{}
	w := &watch{ctx: ctx, dir: dir, index: x, filter: &logs.Filter{}, colours: cli.Palette{}, dial: func() (daemon, error) { return d, nil }}
	w.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	w.Update(w.read(true)())
	return w, d
}

// press sends keys, and then what came of them. A key of more than one letter is a name.
func press(w *watch, keys ...string) {
	names := map[string]rune{"down": tea.KeyDown, "enter": tea.KeyEnter, "esc": tea.KeyEsc, "backspace": tea.KeyBackspace}
	for _, key := range keys {
		k := tea.KeyPressMsg{Text: key, Code: []rune(key)[0]}
		if code, named := names[key]; named {
			k = tea.KeyPressMsg{Code: code}
		}
		if _, cmd := w.Update(k); cmd != nil {
			if msg := cmd(); msg != nil {
				w.Update(msg)
			}
		}
	}
}

func TestWatchFitsTheWindow(t *testing.T) {
	w, _ := watched(t)
	for _, size := range []tea.WindowSizeMsg{{Width: 80, Height: 24}, {Width: 80, Height: 6}, {Width: 40, Height: 10}, {Width: 200, Height: 50}} {
		w.Update(size)
		lines := strings.Split(w.screen(), "\n")
		if len(lines) != size.Height {
			t.Errorf("%v: %d lines", size, len(lines))
		}
		for _, line := range lines {
			if utf8.RuneCountInString(line) > size.Width || strings.ContainsAny(line, "\x1b\u202e") {
				t.Errorf("%v: %q", size, line)
			}
		}
	}
	w.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	for _, want := range []string{">? waits: POST /\\x1b[2Jx to asked.test:443 for ci, rule uploads", " ✗      1 denied.example:443", "3 records", " ✓      1 a-host-with", "/ filter  w why"} {
		if !strings.Contains(w.screen(), want) {
			t.Errorf("the screen has no %q:\n%s", want, w.screen())
		}
	}
	if strings.Contains(w.screen(), "old.test") {
		t.Error("an answered question is shown")
	}
}

func TestWatchAsksBeforeItChanges(t *testing.T) {
	w, d := watched(t)
	press(w, "a", "n")
	if len(d.asked) > 0 || !strings.Contains(w.screen(), "nothing was changed") {
		t.Errorf("asked %v", d.asked)
	}
	press(w, "a", "y", "d", "y")
	w.at = slices.IndexFunc(w.rows, func(r *watchRow) bool { return r.group != nil && r.group.Action == "deny" })
	press(w, "a")
	if !strings.Contains(w.screen(), "allow denied.example:443 for 1 hour, sandbox ci? y/n") {
		t.Errorf("%s", w.screen())
	}
	press(w, "y", "d", "y")
	want := []string{
		"POST /v1/questions/01KB6ZQ4SZ/approve?once=true&for=5m null", "POST /v1/questions/01KB6ZQ4SZ/reject?for=10m0s null",
		`POST /v1/grants {"verdict":"allow","patterns":["denied.example:443"],"seconds":3600,"sandbox":"ci"}`,
		`POST /v1/grants {"verdict":"deny","patterns":["denied.example:443"],"seconds":3600,"sandbox":"ci"}`,
	}
	if !slices.Equal(d.asked, want) {
		t.Errorf("asked %q", d.asked)
	}
	w.dial = nil
	press(w, "d", "y")
	if len(d.asked) != len(want) || !strings.Contains(w.screen(), "no egressd serve answers") && w.act != nil {
		t.Errorf("a log alone: %q", d.asked)
	}
}

func TestWatchFiltersAndExplains(t *testing.T) {
	w, _ := watched(t)
	press(w, "/", "x", "backspace")
	press(w, strings.Split("verdict:nonsense", "")...)
	press(w, "enter")
	if w.typed == nil || w.said == "" {
		t.Errorf("a wrong filter is taken: %q", w.said)
	}
	for range "nonsense" {
		press(w, "backspace")
	}
	press(w, strings.Split("deny", "")...)
	press(w, "enter")
	w.Update(w.read(true)())
	if len(w.rows) != 2 || w.rows[1].group.Destination != "denied.example:443" {
		t.Fatalf("%s", w.screen())
	}
	press(w, "down", "w")
	if !strings.Contains(w.screen(), "no rule allows it") || !strings.Contains(w.screen(), "01KB000001") {
		t.Errorf("%s", w.screen())
	}
	press(w, "esc")
	if w.text != nil {
		t.Error("a key does not go back")
	}
}
