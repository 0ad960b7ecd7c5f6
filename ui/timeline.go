package ui

import (
	"cmp"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/index"
	"github.com/egressd/egressd/logs/story"
	"github.com/egressd/egressd/record"
)

// A line is one decision in a list.
type line struct {
	Time                                 time.Time
	Seq, Number                          int64
	Flow, Action, Destination, What, Who string
	Why, Path, Outcome                   string
	Count                                uint32
	Ended                                bool
	Took                                 time.Duration
	Up, Down                             int64
	Acts                                 []act
}

type timelineView struct {
	Chart *barChart
	Spans []bar // that are not empty, for the table
}

type requestsView struct {
	Lines     []line
	Older     string // URL
	Shown     *shownRequest
	First     bool     // these are the first of a sorted list
	Uncounted []string // ids of what the filter names by number, if none of it is a line
}

const linesShown = 100

func (s *Server) timeline(w http.ResponseWriter, r *http.Request) {
	q := s.readQuery(r, "/timeline")
	sum := s.index.Sum(r.Context(), q.filter, nil)
	v := timelineView{Chart: bars(sum, q, 160)}
	for _, b := range v.Chart.Bars {
		if b.Allowed+b.Denied+b.Asked > 0 {
			v.Spans = append(v.Spans, b)
		}
	}
	sorted(q, v.Spans, map[string]func(a, b bar) int{
		"from": func(a, b bar) int { return a.From.Compare(b.From) }, "denied": by(func(b bar) int64 { return b.Denied }),
		"asked": by(func(b bar) int64 { return b.Asked }), "allowed": by(func(b bar) int64 { return b.Allowed }),
	})
	s.write(w, r, http.StatusOK, "timeline", q, sum, v)
}

func (s *Server) requests(w http.ResponseWriter, r *http.Request) {
	q := s.readQuery(r, "/requests")
	before := int64(math.MaxInt64)
	if n, err := strconv.ParseInt(q.options.Get("before"), 10, 64); err == nil {
		before = n
	}
	sum := s.index.Sum(r.Context(), q.filter, nil)
	rows, first := s.firstRows(r.Context(), q, linesShown)
	if !first {
		rows = s.index.Newest(r.Context(), q.filter, before, linesShown)
	}
	v := requestsView{Lines: s.lines(rows), First: first && len(rows) == linesShown}
	if len(v.Lines) == linesShown && !first {
		v.Older = q.option("before", strconv.FormatInt(v.Lines[linesShown-1].Number, 10))
	}
	if len(v.Lines) == 0 { // such as a name that was asked for, whose connection counts
		flows := q.filter.NumberedFlows()
		v.Uncounted = flows[:min(len(flows), linesShown)]
	}
	if id := q.options.Get("show"); id != "" {
		v.Shown = s.shown(r, q, id)
	}
	s.write(w, r, http.StatusOK, "requests", q, sum, v)
}

func (s *Server) lines(rows []index.Row) []line {
	all := make([]line, len(rows))
	undo := s.undoable()
	for i, row := range rows {
		s.index.Shapes([]uint32{row.Shape}, func(_ uint32, r *record.Record) {
			all[i] = line{
				Time: at(row.Time), Seq: row.Seq, Number: row.Number, Flow: row.Flow.String(), Action: r.Decision.Action, Destination: logs.Destination(r), What: logs.What(r), Who: logs.Who(r),
				Why: logs.Why(r), Outcome: string(r.Outcome), Count: row.Count, Ended: row.Ended, Took: row.Took, Up: row.Up, Down: row.Down,
			}
			all[i].Acts = s.acts(r, all[i].Flow, undo.about(r))
			if r.HTTP != nil {
				all[i].Path = strings.Clone(r.HTTP.Path)
			}
		})
	}
	return all
}

// A shownRequest is what stands of one request beside the list.
type shownRequest struct {
	Flow  string
	Title string
	Err   error
	*story.Story
	Facts []fact
	Acts  []act
	Close string // URL of the list alone
}

func (s *Server) shown(r *http.Request, q *query, id string) *shownRequest {
	v := &shownRequest{Close: q.option("show", "")}
	if v.Story, _, v.Err = s.story(id); v.Err != nil {
		return v
	}
	v.Flow = v.Story.Flow
	told := cmp.Or(v.Decisive, v.Records[0])
	v.Title, v.Facts = destination(told), factsOf(v.Story, told)
	if told.Decision != nil {
		v.Acts = s.acts(told, v.Flow, s.undoable().about(told))
	}
	return v
}
