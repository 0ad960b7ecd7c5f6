package logcmd

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/index"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/logs/story"
	"github.com/egressd/egressd/record"
)

// A daemon is a running egressd serve: a client.Client.
type daemon interface {
	Send(ctx context.Context, method, path string, body, v any, wanted ...int) (status int, err error)
}

// A watch is the state of the screen. Update and View are called one at a time.
type watch struct {
	ctx     context.Context
	dir     string
	flags   string // with which other commands read the same log
	allow   string // with which egressd allow changes its policy
	index   *index.Index
	dial    func() (daemon, error) // nil for a log alone
	colours cli.Palette

	filter        *logs.Filter
	words         []string
	width, height int
	rows          []*watchRow
	progress      index.Progress
	at            int      // the row with the cursor
	typed         *string  // the filter that is being typed, or nil
	text          []string // that is shown instead of the rows, or nil
	from          int      // first line of text
	confirm       string   // question about act
	act           tea.Cmd  // done after y
	said          string   // the last line
}

// A watchRow is a question, or requests that are alike.
type watchRow struct {
	question *egress.Question
	group    *logs.Group
	sandbox  string
}

// Messages to Update.
type (
	rowsMsg struct {
		filter   *logs.Filter
		rows     []*watchRow
		progress index.Progress
		err      error
		extra    bool // the next rows come by themselves
	}
	textMsg struct{ text string }
	saidMsg struct{ text string }
	tickMsg struct{}
)

const (
	watchPause  = 500 * time.Millisecond
	watchRows   = 500
	watchAsk    = 5 * time.Second
	watchGrant  = time.Hour
	watchReject = 10 * time.Minute
	storyMost   = 400_000
)

func (w *watch) Init() tea.Cmd { return w.read(false) }

// read returns the command that reads the rows of the filter. It runs beside Update and View.
func (w *watch) read(extra bool) tea.Cmd {
	f := w.filter
	return func() tea.Msg {
		m := w.rowsOf(f)
		m.extra = extra
		return m
	}
}

// rowsOf changes nothing of w, and reads no field that Update changes.
func (w *watch) rowsOf(f *logs.Filter) rowsMsg {
	m := rowsMsg{filter: f}
	if w.dial != nil {
		var all egress.Questions
		if m.err = w.send(http.MethodGet, "/v1/questions", nil, &all); m.err == nil {
			for i := range all.Questions {
				if q := &all.Questions[i]; q.State == "pending" {
					m.rows = append(m.rows, &watchRow{question: q, sandbox: q.Sandbox})
				}
			}
		}
	}
	sum := w.index.Sum(w.ctx, f, nil)
	m.progress = sum.Progress
	var all logs.Overview
	sandboxes := map[string]string{} // by flow
	var bytes record.Bytes
	w.index.Shapes(slices.Collect(maps.Keys(sum.Totals)), func(id uint32, r *record.Record) {
		t := sum.Totals[id]
		bytes = record.Bytes{Up: t.Up, Down: t.Down}
		r.Flow, r.Count, r.Time, r.Bytes = t.Flow.String(), t.Count, time.UnixMicro(t.Last), &bytes
		sandboxes[r.Flow] = strings.Clone(r.Sandbox)
		all.Add(r)
	})
	var groups []*logs.Group
	for _, action := range []string{"deny", "ask", "allow"} {
		groups = append(groups, all.Section(action)...)
	}
	slices.SortStableFunc(groups, func(a, b *logs.Group) int { return b.Last.Compare(a.Last) })
	for _, g := range groups[:min(len(groups), watchRows)] {
		m.rows = append(m.rows, &watchRow{group: g, sandbox: sandboxes[g.Flow]})
	}
	return m
}

func (w *watch) send(method, path string, body, v any) error {
	ctx, cancel := context.WithTimeout(w.ctx, watchAsk)
	defer cancel()
	d, err := w.dial()
	if err == nil {
		_, err = d.Send(ctx, method, path, body, v, http.StatusServiceUnavailable)
	}
	return err
}

func (w *watch) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch m := msg.(type) {
	case tea.WindowSizeMsg:
		w.width, w.height = m.Width, m.Height
	case rowsMsg:
		w.show(m)
		if m.extra {
			return w, nil
		}
		return w, tea.Tick(watchPause, func(time.Time) tea.Msg { return tickMsg{} })
	case tickMsg:
		return w, w.read(false)
	case textMsg:
		w.text, w.from = strings.Split(strings.TrimRight(m.text, "\n"), "\n"), 0
	case saidMsg:
		w.said = m.text
	case tea.KeyPressMsg:
		return w, w.key(m)
	}
	return w, nil
}

// show takes over rows, and keeps the cursor on its row.
func (w *watch) show(m rowsMsg) {
	if m.filter != w.filter { // there is a new one
		return
	}
	before := w.current()
	w.rows, w.progress = m.rows, m.progress
	if m.err != nil {
		w.said = m.err.Error()
	}
	if before != nil {
		if i := slices.IndexFunc(w.rows, before.same); i >= 0 {
			w.at = i
		}
	}
	w.at = max(0, min(w.at, len(w.rows)-1))
}

func (w *watch) current() *watchRow {
	if w.at < len(w.rows) {
		return w.rows[w.at]
	}
	return nil
}

func (r *watchRow) same(other *watchRow) bool {
	if r.question != nil || other.question != nil {
		return r.question != nil && other.question != nil && r.question.ID == other.question.ID
	}
	return r.group.GroupKey == other.group.GroupKey
}

func (w *watch) key(k tea.KeyPressMsg) tea.Cmd {
	if k.String() == "ctrl+c" {
		return tea.Quit
	}
	switch {
	case w.typed != nil:
		if w.typeFilter(k) {
			return w.read(true)
		}
	case w.act != nil:
		act := w.act
		w.act, w.confirm = nil, ""
		if k.String() == "y" {
			return act
		}
		w.said = "nothing was changed"
	case w.text != nil:
		w.scroll(k)
	default:
		return w.command(k)
	}
	return nil
}

// typeFilter reports whether there is a new filter.
func (w *watch) typeFilter(k tea.KeyPressMsg) bool {
	text := *w.typed
	switch k.String() {
	case "esc":
		w.typed = nil
		return false
	case "enter":
		words := logs.SplitFilter(text)
		f, err := logs.ParseFilter(words, time.Now())
		if err != nil {
			w.said = err.Error()
			return false
		}
		w.filter, w.words, w.typed, w.said, w.rows, w.at = f, words, nil, "", nil, 0
		return true
	case "backspace":
		if r := []rune(text); len(r) > 0 {
			text = string(r[:len(r)-1])
		}
	case "ctrl+u":
		text = ""
	default:
		text += k.Text
	}
	w.typed = &text
	return false
}

func (w *watch) scroll(k tea.KeyPressMsg) {
	switch k.String() {
	case "down", "j":
		w.from = min(w.from+1, max(0, len(w.text)-1))
	case "up", "k":
		w.from = max(0, w.from-1)
	default:
		w.text = nil
	}
}

func (w *watch) command(k tea.KeyPressMsg) tea.Cmd {
	page := max(1, w.height-watchFrame)
	w.said = ""
	switch k.String() {
	case "q":
		return tea.Quit
	case "down", "j":
		w.at++
	case "up", "k":
		w.at--
	case "pgdown", "space":
		w.at += page
	case "pgup":
		w.at -= page
	case "home", "g":
		w.at = 0
	case "/":
		text := strings.Join(w.words, " ")
		w.typed = &text
	case "w", "enter":
		return w.why()
	case "a", "d":
		w.decide(map[string]string{"a": "allow", "d": "deny"}[k.String()])
	}
	w.at = max(0, min(w.at, len(w.rows)-1))
	return nil
}

// why explains the row with the cursor.
func (w *watch) why() tea.Cmd {
	row := w.current()
	if row == nil || row.group == nil {
		return nil
	}
	id := row.group.Flow
	return func() tea.Msg {
		text, err := w.story(id)
		if err != nil {
			return saidMsg{err.Error()}
		}
		return textMsg{text}
	}
}

// story explains a flow. It runs beside Update and View.
func (w *watch) story(id string) (string, error) {
	flow, _ := record.ParseID(id)
	row, known := w.index.ByFlow(flow)
	if !known {
		return "", fmt.Errorf("%s is not in memory any more: egressd why %s%s", id, id, w.flags)
	}
	log, err := source.At(w.dir, row.Seq)
	if err != nil {
		return "", err
	}
	defer log.Close()
	s, err := story.From(log, id, storyMost)
	if err != nil {
		return "", err
	}
	if s.Fix != "" {
		s.Fix += w.allow
	}
	var b strings.Builder
	err = storyView{s, "", w.flags}.print(&b, "the policy file", w.colours)
	return b.String(), err
}

// decide asks whether to allow or deny what the row with the cursor is about.
func (w *watch) decide(verdict string) {
	row := w.current()
	switch {
	case row == nil:
	case w.dial == nil:
		w.said = "no egressd serve answers; w shows the command that changes the policy"
	case row.question != nil:
		w.answer(row.question, verdict)
	default:
		w.grant(row, verdict)
	}
}

func (w *watch) answer(q *egress.Question, verdict string) {
	word, terms := "approve", "once=true&for=5m"
	w.confirm = "approve once: " + questionOf(q)
	if verdict == "deny" {
		word, terms = "reject", "for="+watchReject.String()
		w.confirm = "reject for 10 minutes: " + questionOf(q)
	}
	path := "/v1/questions/" + q.ID + "/" + word + "?" + terms
	w.act = func() tea.Msg {
		var done admin.Answer
		if err := w.send(http.MethodPost, path, nil, &done); err != nil {
			return saidMsg{err.Error()}
		}
		return saidMsg{"answered: " + word}
	}
}

func questionOf(q *egress.Question) string {
	return cmp.Or(strings.TrimSpace(q.Method+" "+q.Path), "a connection") + " to " + q.Host + ":" + strconv.Itoa(int(q.Port)) + " for " + q.Sandbox
}

func (w *watch) grant(row *watchRow, verdict string) {
	ask := admin.GrantRequest{Verdict: verdict, Patterns: []string{row.group.Destination}, Seconds: int64(watchGrant / time.Second), Sandbox: row.sandbox}
	w.confirm = verdict + " " + row.group.Destination + " for 1 hour, sandbox " + row.sandbox
	w.act = func() tea.Msg {
		var done admin.Granted
		if err := w.send(http.MethodPost, "/v1/grants", ask, &done); err != nil {
			return saidMsg{err.Error()}
		}
		return saidMsg{"done: " + verdict + " " + row.group.Destination + "; egressd grants lists it"}
	}
}
