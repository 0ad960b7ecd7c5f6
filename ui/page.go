package ui

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/index"
	"github.com/egressd/egressd/logs/replay"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

//go:embed assets
var assets embed.FS

var (
	style  = asset("page.css")
	script = asset("page.js")
	// pages are parsed when they are needed: every command of egressd would wait for it.
	pages = sync.OnceValue(func() *template.Template {
		return template.Must(template.New("").Funcs(template.FuncMap{
			"safe": printable.Text, "word": printable.Word, "size": quantity.Bytes, "number": number, "when": when, "stamp": stamp, "mark": mark, "verdict": verdictWord,
			"percent": percent, "seconds": quantity.Duration, "destination": destination, "rawline": rawLine, "multi": lines, "effect": effect, "left": left, "firstleg": firstLeg, "sentence": sentence, "bynumber": byNumber, "clock": func(t time.Time) string { return t.Format(time.DateTime + " -0700") }, "pair": func(a, b any) map[string]any { return map[string]any{"A": a, "B": b} },
		}).ParseFS(assets, "assets/*.html"))
	})
)

func asset(name string) string {
	text, err := assets.ReadFile("assets/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(text)
}

// A frame is what surrounds every view.
type frame struct {
	View, Title string
	Nav, Sub    []navLink
	Log, Dir    string
	Query       *query
	Filters     bool // the view has a filter
	Times       []navLink
	Progress    index.Progress
	CSRF        string
	Script      template.JS
	Style       template.CSS
	Body        any
	Strip       *barChart
	Questions   int // that wait for an answer
	Asking      []question
	Fresh       string // where the script looks for what is new, "" for the address of the view
	DaemonErr   string // why the daemon does not answer
	Observing   []policy.Observation
	Verified    verified
	Now         time.Time
	Run         string // that the filter names, of several
	RunsURL     string // of the view of all runs
}

type navLink struct {
	Name, URL string
	Here      bool
	Count     int
}

// views are the five views, each with its arrangements: address, name of the template, an option, and title. A view leads to the
// first of its arrangements that the page has.
var views = []struct {
	title        string
	arrangements []arrangement
}{
	{"Log", []arrangement{{"/", "now", "", "Now"}, {"/requests", "requests", "", "Each request"}, {"/timeline", "timeline", "", "Timeline"}, {"/runs", "runs", "", "Runs"}}},
	{"Where", []arrangement{{"/destinations", "destinations", "", "Destinations"}, {"/destinations", "destinations", "program", "Who to where"}, {"/sent", "sent", "", "What left"}}},
	{"Attempts", []arrangement{{"/attempts", "attempts", "", "Attempts"}}},
	{"Policy", []arrangement{{"/policy", "policy", "", "Rules"}, {"/review", "review", "", "Review"}, {"/questions", "questions", "", "Questions"}}},
	{"Health", []arrangement{{"/health", "health", "", "Health"}}},
}

// An arrangement is one way to show a view.
type arrangement struct{ path, name, by, title string }

// link returns the link to an arrangement, with words of the filter.
func (a *arrangement) link(f *frame, by string, words []string) navLink {
	link := navLink{Name: a.title, URL: a.path, Here: a.name == f.View && a.by == by}
	options := url.Values{}
	if a.by != "" {
		options.Set("by", a.by)
	}
	switch a.name {
	case "questions":
		link.Count = f.Questions
	case "health", "policy":
	case "runs": // the list shows what matches in each
		link.URL = address(a.path, without(words, "run"), nil)
	default:
		link.URL = address(a.path, words, options)
	}
	return link
}

// elsewhere returns the words of the filter that another view begins with: its run, and its span of time. Attempts has no span, since
// scores of a part of a log are lower.
func elsewhere(view string, words []string) (kept []string) {
	for _, word := range words {
		switch key, _, _ := strings.Cut(word, ":"); key {
		case "run":
			kept = append(kept, word)
		case "since", "until":
			if view != "Attempts" {
				kept = append(kept, word)
			}
		}
	}
	return kept
}

// navigate fills in Nav with links to the views, and Sub with links to the arrangements of this view, which keep the filter.
func (f *frame) navigate(has func(path string) bool, by string) {
	for _, v := range views {
		var all []navLink
		here := false
		for _, a := range v.arrangements {
			if !has(a.path) {
				continue
			}
			link := a.link(f, by, f.Query.words)
			if here = here || link.Here; link.Here {
				f.Title = link.Name
			}
			all = append(all, link)
		}
		if len(all) == 0 {
			continue
		}
		first := navLink{Name: v.title, URL: all[0].URL, Here: here}
		if !here {
			i := slices.IndexFunc(v.arrangements, func(a arrangement) bool { return has(a.path) })
			first.URL = v.arrangements[i].link(f, by, elsewhere(v.title, f.Query.words)).URL
		}
		for _, link := range all {
			first.Count += link.Count
		}
		f.Nav = append(f.Nav, first)
		if here && len(all) > 1 {
			f.Sub = all
		}
	}
}

func (s *Server) show(w http.ResponseWriter, r *http.Request, name string, body any) {
	s.write(w, r, http.StatusOK, name, nil, nil, body)
}

// write writes the page of a view. q and sum may be nil.
func (s *Server) write(w http.ResponseWriter, r *http.Request, status int, name string, q *query, sum *index.Sum, body any) {
	f := frame{View: name, Log: s.options.Title, Dir: s.options.Dir, CSRF: s.guard.csrf, Script: template.JS(script), Style: template.CSS(style), Body: body, Query: q, Now: time.Now()}
	if f.Progress, _ = s.index.Progress(); sum != nil {
		f.Progress = sum.Progress // the browser is told of records that came since
	}
	if q == nil {
		f.Query = &query{View: r.URL.Path}
	}
	asked, _, daemonErr := s.live.state()
	f.Questions, f.Observing = pending(asked), s.live.observed()
	if name != "questions" {
		f.Asking = s.bar(r, asked)
	}
	if r.Method != http.MethodGet {
		f.Fresh = "/state"
	}
	if s.options.Dial != nil && daemonErr != nil {
		f.DaemonErr = daemonErr.Error()
	}
	f.Verified = s.lastVerified()
	if q != nil && q.filter.Run != "" {
		f.Run, f.RunsURL = q.filter.Run, q.without("run")
	}
	routes := s.routes()
	f.navigate(func(path string) bool { return path == "/" || routes["GET "+path] != nil }, f.Query.options.Get("by"))
	if q != nil {
		f.Filters = true
		f.Times = q.times()
	}
	if sum != nil && q != nil {
		f.Strip = bars(sum, q, 100)
	}
	var out bytes.Buffer
	if err := pages().ExecuteTemplate(&out, name+".html", f); err != nil {
		http.Error(w, "the page could not be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(out.Bytes())
}

// times are the spans of time that one click chooses.
func (q *query) times() (all []navLink) {
	since := ""
	for _, word := range q.words {
		if key, value, _ := strings.Cut(word, ":"); key == "since" {
			since = value
		}
	}
	for _, one := range []struct{ name, since string }{{"15 min", "15m"}, {"1 h", "1h"}, {"24 h", "24h"}, {"7 days", "7d"}} {
		all = append(all, navLink{Name: one.name, URL: (&query{words: without(q.words, "until")}).with(q.View, term("since", one.since)), Here: since == one.since})
	}
	return append(all, navLink{Name: "All", URL: q.without("since", "until"), Here: since == ""})
}

func without(words []string, key string) (left []string) {
	for _, word := range words {
		if k, _, _ := strings.Cut(word, ":"); k != key {
			left = append(left, word)
		}
	}
	return left
}

// refuse answers a request that gets no view.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, why *refusal) {
	if strings.HasPrefix(r.URL.Path, "/v1/") {
		fail(w, why.status, why.why, why.next)
		return
	}
	var out bytes.Buffer
	f := map[string]any{"Style": template.CSS(style), "Why": why.why, "Next": why.next}
	if err := pages().ExecuteTemplate(&out, "refused.html", f); err != nil {
		http.Error(w, why.why, why.status)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(why.status)
	_, _ = w.Write(out.Bytes())
}

// number writes n with narrow gaps between thousands.
func number(n any) string {
	digits := fmt.Sprint(n)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 && digits[i-1] != '-' {
			b.WriteString("\u202f")
		}
		b.WriteRune(d)
	}
	return b.String()
}

func percent(part, whole int64) string {
	switch {
	case whole <= 0:
		return "0 %"
	case part > 0 && part*100 < whole:
		return "under 1 %"
	case part < whole && part*100+whole/2 >= whole*100:
		return "over 99 %"
	default:
		return strconv.FormatInt((part*100+whole/2)/whole, 10) + " %"
	}
}

// sentence begins a text with a capital.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	return printable.Text(strings.ToUpper(text[:1]) + text[1:])
}

// when writes a time for a person, in the zone of this machine.
func when(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return quantity.Clock(t, time.Now())
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func at(micros int64) time.Time { return time.UnixMicro(micros) }

// mark returns the shape that stands for a verdict beside its colour.
func mark(action string) string {
	switch action {
	case "allow", replay.LookedInto:
		return "✓"
	case "ask":
		return "?"
	default:
		return "✗"
	}
}

func verdictWord(action string) string {
	switch action {
	case "allow":
		return "allowed"
	case "ask":
		return "asked"
	case "deny":
		return "denied"
	case replay.LookedInto:
		return "looked into"
	default:
		return "unknown"
	}
}

func destination(r *record.Record) string {
	if d := logs.Destination(r); d != "" {
		return printable.Word(d)
	}
	return string(r.Kind)
}

func rawLine(text []byte) string { return string(printable.JSON(text)) }

func lines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(printable.Text(strings.TrimSuffix(line, "\n")) + "\n")
	}
	return b.String()
}

// effect is the effect of a rule with its shape.
func effect(name string) string {
	switch name {
	case "allow", "inspect":
		return "✓ " + name
	case "ask":
		return "? " + name
	default:
		return "✗ " + name
	}
}

func left(seconds float64) string {
	return quantity.Span(time.Duration(seconds) * time.Second)
}
