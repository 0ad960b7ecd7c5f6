package ui

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/export"
	"github.com/egressd/egressd/logs/signals"
	"github.com/egressd/egressd/record"
)

// The answers of /v1/ are described in openapi.json. Its test compares both.

func reply(w http.ResponseWriter, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		fail(w, http.StatusInternalServerError, "the answer cannot be written", "")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(text, '\n'))
}

// A failure is the body of an answer that is an error.
type failure struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
}

func fail(w http.ResponseWriter, status int, why, next string) {
	text, _ := json.Marshal(failure{why, next})
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}

func failWith(w http.ResponseWriter, status int, err error) {
	fail(w, status, err.Error(), hint.Next(err))
}

// A decision is an element of /v1/records.
type decision struct {
	Seq          int64     `json:"seq"`
	Run          string    `json:"run,omitempty"` // whose log has the record, if the page is about several
	Time         time.Time `json:"time"`
	Flow         string    `json:"flow"`
	Verdict      string    `json:"verdict"`
	Sandbox      string    `json:"sandbox,omitempty"`
	Program      string    `json:"program,omitempty"`
	Destination  string    `json:"destination"`
	What         string    `json:"what"`
	Path         string    `json:"path,omitempty"`
	Rule         string    `json:"rule,omitempty"`
	Layer        string    `json:"layer,omitempty"`
	Class        string    `json:"class,omitempty"`
	Outcome      string    `json:"outcome,omitempty"`
	Count        int64     `json:"count"`
	Ended        bool      `json:"ended"`
	Up           int64     `json:"up"`
	Down         int64     `json:"down"`
	Milliseconds int64     `json:"duration_ms"`
}

type decisions struct {
	Records []decision `json:"records"`        // newest first
	Next    int64      `json:"next,omitempty"` // value of before for older ones; absent at the end
	Through int64      `json:"through"`        // number of the record behind the last one that was read
}

const (
	pageUsual = 100
	pageMost  = 1000
	topMost   = 1000
)

// ask reads the query of a request to the API. If ok is false, it has answered.
func (s *Server) ask(w http.ResponseWriter, r *http.Request, known ...string) (q *query, ok bool) {
	q = s.readQuery(r, r.URL.Path)
	if q.Problem != "" {
		fail(w, http.StatusBadRequest, q.Problem, q.Try)
		return nil, false
	}
	for name, values := range q.options {
		if !slices.Contains(known, name) || len(values) > 1 {
			fail(w, http.StatusBadRequest, fmt.Sprintf("the parameter %q is unknown or repeated", name), "q "+strings.Join(known, " "))
			return nil, false
		}
	}
	return q, true
}

// count reads a parameter that is a number from least to most.
func (q *query) count(w http.ResponseWriter, name string, usual, least, most int64) (n int64, ok bool) {
	text := q.options.Get(name)
	if text == "" {
		return usual, true
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		fail(w, http.StatusBadRequest, fmt.Sprintf("%s is a number from %d to %d", name, least, most), name+"="+strconv.FormatInt(usual, 10))
		return 0, false
	}
	return n, true
}

func (s *Server) apiRecords(w http.ResponseWriter, r *http.Request) {
	q, ok := s.ask(w, r, "limit", "before")
	if !ok {
		return
	}
	limit, ok := q.count(w, "limit", pageUsual, 1, pageMost)
	if !ok {
		return
	}
	before, ok := q.count(w, "before", math.MaxInt64, 0, math.MaxInt64)
	if !ok {
		return
	}
	progress, _ := s.index.Progress()
	all := decisions{Records: []decision{}, Through: progress.Next}
	next := int64(0)
	for _, row := range s.index.Newest(r.Context(), q.filter, before, int(limit)) {
		next = row.Number
		s.index.Shapes([]uint32{row.Shape}, func(_ uint32, of *record.Record) {
			d := decision{
				Seq: row.Seq, Time: at(row.Time).UTC(), Flow: row.Flow.String(), Verdict: of.Decision.Action, Sandbox: of.Sandbox, Program: logs.Process(of),
				Destination: logs.Destination(of), What: logs.What(of), Rule: of.Decision.Rule, Layer: of.Decision.Layer, Class: of.Decision.Class, Outcome: string(of.Outcome),
				Count: int64(row.Count), Ended: row.Ended, Up: row.Up, Down: row.Down, Milliseconds: row.Took.Milliseconds(),
			}
			if s.options.Runs != nil {
				d.Run = filepath.Base(row.Log)
			}
			if of.HTTP != nil {
				d.Path = of.HTTP.Path
			}
			all.Records = append(all.Records, d)
		})
	}
	if len(all.Records) == int(limit) {
		all.Next = next
	}
	reply(w, all)
}

func (s *Server) apiCounts(w http.ResponseWriter, r *http.Request) {
	q, ok := s.ask(w, r, "by", "limit")
	if !ok {
		return
	}
	limit, ok := q.count(w, "limit", pageUsual, 1, topMost)
	if !ok {
		return
	}
	field := logs.Field(cmp.Or(q.options.Get("by"), "host"))
	if field == nil || slices.Contains([]string{"hour", "day"}, q.options.Get("by")) {
		fail(w, http.StatusBadRequest, "by names no field", "by=host; also "+strings.Join(logs.FieldNames, " "))
		return
	}
	sum := s.index.Sum(r.Context(), q.filter, nil)
	all := map[string]*logs.Entry{}
	s.index.Shapes(slices.Collect(maps.Keys(sum.Totals)), func(id uint32, of *record.Record) {
		t, value := sum.Totals[id], field(of)
		c := all[value]
		if c == nil {
			c = &logs.Entry{Value: strings.Clone(value)}
			all[c.Value] = c
		}
		c.Count, c.Up, c.Down = c.Count+t.Count, c.Up+t.Up, c.Down+t.Down
		if of.Decision.Action == "deny" {
			c.Denied += t.Count
		}
	})
	top := slices.SortedFunc(maps.Values(all), func(a, b *logs.Entry) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Value, b.Value))
	})
	if top == nil {
		top = []*logs.Entry{} // "[]" and not null
	}
	reply(w, map[string]any{"counts": top[:min(len(top), int(limit))], "distinct": len(top)})
}

// A moment is an element of /v1/timeline.
type moment struct {
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`
	Allowed int64     `json:"allowed"`
	Denied  int64     `json:"denied"`
	Asked   int64     `json:"asked"`
}

func (s *Server) apiTimeline(w http.ResponseWriter, r *http.Request) {
	q, ok := s.ask(w, r, "bars")
	if !ok {
		return
	}
	most, ok := q.count(w, "bars", 100, 1, 1000)
	if !ok {
		return
	}
	c := bars(s.index.Sum(r.Context(), q.filter, nil), q, most)
	all := []moment{}
	for _, b := range c.Bars {
		all = append(all, moment{b.From.UTC(), b.To.UTC(), b.Allowed, b.Denied, b.Asked})
	}
	reply(w, map[string]any{"timeline": all, "step": c.Step})
}

func (s *Server) apiAttempts(w http.ResponseWriter, r *http.Request) {
	q, ok := s.ask(w, r)
	if !ok {
		return
	}
	state := s.search(strings.Join(q.words, " "), q.filter)
	if state.Found == nil {
		state.Found = []signals.Suspect{}
	}
	reply(w, map[string]any{"attempts": state.Found, "complete": state.Done && !state.Busy})
}

func (s *Server) apiStory(w http.ResponseWriter, r *http.Request) {
	found, _, err := s.story(r.PathValue("id"))
	if err != nil {
		failWith(w, http.StatusNotFound, err)
		return
	}
	reply(w, found)
}

func (s *Server) apiProof(w http.ResponseWriter, r *http.Request) {
	seq, err := strconv.ParseInt(r.PathValue("seq"), 10, 64)
	if err != nil || seq < 0 {
		fail(w, http.StatusBadRequest, "a proof is about the number of a record", "/v1/records, which has the numbers")
		return
	}
	text, err := s.proof(r.URL.Query().Get("run"), seq)
	if err != nil {
		failWith(w, http.StatusConflict, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="proof-%d.json"`, seq))
	_, _ = w.Write(append(text, '\n'))
}

func (s *Server) apiHealth(w http.ResponseWriter, _ *http.Request) {
	p, _ := s.index.Progress()
	v := s.verify(false)
	all := map[string]any{"through": p.Next, "decisions": p.Rows, "left_out": p.Dropped, "caught_up": p.CaughtUp, "verified": v.Good(), "verifying": v.Busy}
	if p.Err != nil {
		all["error"] = p.Err.Error()
	}
	if v.Report != nil {
		all["report"], all["verified_at"] = v.Report, v.At.UTC()
	}
	reply(w, all)
}

const (
	exportPath    = "/v1/export"
	exportTimeout = 10 * time.Minute // a large log, and a browser that writes it to a disk
)

// apiExport writes the records that the filter takes, as egressd log export does.
func (s *Server) apiExport(w http.ResponseWriter, r *http.Request) {
	q, ok := s.ask(w, r, "format")
	if !ok {
		return
	}
	format := cmp.Or(q.options.Get("format"), "json")
	encode, header, ok := export.ToFile(format)
	if !ok {
		fail(w, http.StatusBadRequest, fmt.Sprintf("there is no format %q", format), "format=csv; also json "+strings.Join(export.Formats(), " "))
		return
	}
	log, err := s.openLogs(q.filter.Run, 0)
	if err != nil {
		failWith(w, http.StatusConflict, err)
		return
	}
	defer log.Close()
	kind := "application/json"
	if format == "csv" {
		kind = "text/csv; charset=utf-8"
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Disposition", `attachment; filename="egressd-`+time.Now().Format("20060102-150405")+"."+format+`"`)
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(exportTimeout))
	if err := log.Export(w, q.filter, header, encode); err != nil {
		if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
			c.Close() // the browser must not take half of a file for all of it
		}
	}
}
