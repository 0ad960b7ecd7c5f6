package ui

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/internal/recovered"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/replay"
	"github.com/egressd/egressd/logs/signals"
	"github.com/egressd/egressd/record"
)

// An attemptsJob looks for signs of data being sent out. That reads the whole log, so it goes on beside
// requests, one filter at a time.
type attemptsJob struct {
	mu     sync.Mutex // guards what follows
	filter string
	found  []signals.Suspect
	stops  map[replay.Course]*replay.Stop
	at     time.Time // when found was complete; zero while the first search goes on
	next   int64     // the records up to here were searched
	err    error
	busy   bool
	cancel context.CancelFunc
}

// An attemptsState is what is known of a search.
type attemptsState struct {
	Found []signals.Suspect
	Stops map[replay.Course]*replay.Stop
	Done  bool
	Busy  bool
	At    time.Time
	Err   error
}

// attemptsAge is how old an answer may be before a look at it begins another search.
const attemptsAge = 20 * time.Second

// search returns what is known for a filter, and begins a search where that is too old.
func (s *Server) search(text string, f *logs.Filter) attemptsState {
	progress, _ := s.index.Progress()
	j := &s.attempts
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.filter != text || j.cancel == nil {
		if j.cancel != nil {
			j.cancel()
		}
		j.filter, j.found, j.stops, j.at, j.next, j.err, j.busy = text, nil, nil, time.Time{}, 0, nil, false
	}
	if !j.busy && (j.at.IsZero() || j.next < progress.Next && time.Since(j.at) > attemptsAge) {
		ctx, cancel := context.WithCancel(s.context)
		j.busy, j.cancel = true, cancel
		s.work.Go(func() { s.searchLog(ctx, text, f, progress.Next) })
	}
	return attemptsState{j.found, j.stops, !j.at.IsZero(), j.busy, j.at, j.err}
}

func (s *Server) searchLog(ctx context.Context, text string, f *logs.Filter, next int64) {
	defer recovered.Log("looking for attempts", nil)
	var finder signals.Finder
	log, err := s.openLogs(f.Run, 0)
	if err == nil {
		err = log.DecisionsUntil(ctx, f, finder.Add)
		log.Close()
	}
	found := finder.Suspects()
	var stops map[replay.Course]*replay.Stop
	if err == nil {
		stops, err = s.stops(ctx, found, f)
	}
	j := &s.attempts
	j.mu.Lock()
	defer j.mu.Unlock()
	if ctx.Err() != nil || j.filter != text {
		return // another filter is asked for
	}
	j.found, j.stops, j.at, j.next, j.err, j.busy = found, stops, time.Now(), next, err, false
}

// stops looks for the rules that would have stopped the attempts that are shown. It tries each rule on all requests of the log,
// since a rule may also deny requests outside the filter.
func (s *Server) stops(ctx context.Context, found []signals.Suspect, f *logs.Filter) (map[replay.Course]*replay.Stop, error) {
	var courses []replay.Course
	for _, a := range found[:min(len(found), attemptsShown)] {
		courses = append(courses, courseOf(a))
	}
	return replay.Stops(ctx, courses, func(do func(*record.Record)) error {
		log, err := s.openLogs(f.Run, 0)
		if err != nil {
			return err
		}
		defer log.Close()
		return log.DecisionsUntil(ctx, &logs.Filter{}, do)
	})
}

func courseOf(a signals.Suspect) replay.Course {
	return replay.Course{Sandbox: a.Sandbox, Program: a.Program, Destination: strings.TrimPrefix(a.Destination, signals.Many)}
}

type attemptsView struct {
	attemptsState
	Stories []attemptStory
	More    int

	Scored, Half, Most int // stories, and what half of them and nine in ten of them score at most
}

// An attempt is a suspect with the addresses of its records.
type attempt struct {
	signals.Suspect
	URL  string
	Stop *replay.Stop // nil: no rule is about it
	Acts []act
}

// An attemptStory is the strongest attempt of a story, and the others.
type attemptStory struct {
	attempt
	Strong bool
	Also   []attempt
}

const (
	attemptsShown = 50
	strongScore   = 40 // ordinary programs score less
)

func (s *Server) attemptsView(w http.ResponseWriter, r *http.Request) {
	q := s.readQuery(r, "/attempts")
	v := attemptsView{}
	if q.Problem == "" {
		v.attemptsState = s.search(strings.Join(q.words, " "), q.filter)
	}
	undo := s.undoable()
	shown := 0
	stories := signals.Stories(v.Found)
	if v.Scored = len(stories); v.Scored > 0 { // the highest score first
		v.Half, v.Most = stories[v.Scored/2][0].Score, stories[v.Scored/10][0].Score
	}
	for _, all := range stories {
		if shown == attemptsShown {
			v.More++
			continue
		}
		var told attemptStory
		for i, a := range all {
			if shown == attemptsShown {
				break
			}
			one := attempt{Suspect: a, URL: q.with("/requests", attemptTerms(a)...), Stop: v.Stops[courseOf(a)], Acts: s.actsOf(a.IDs, undo)}
			if shown++; i == 0 {
				told.attempt, told.Strong = one, a.Score >= strongScore
			} else {
				told.Also = append(told.Also, one)
			}
		}
		v.Stories = append(v.Stories, told)
	}
	s.write(w, r, http.StatusOK, "attempts", q, nil, v)
}

// attemptTerms is the filter for the records of an attempt.
func attemptTerms(a signals.Suspect) (terms []string) {
	if a.Sandbox != "" {
		terms = append(terms, term("sandbox", a.Sandbox))
	}
	if a.Program != "" && a.Program != signals.Beyond {
		terms = append(terms, term("proc", a.Program))
	}
	if a.Destination != signals.Beyond && a.Destination != signals.Many {
		terms = append(terms, term("host", "*"+a.Destination))
	}
	return terms
}

// firstLeg returns the URL of what a sandbox sent to the destination where another one fetched it.
func firstLeg(l *signals.Leg) string {
	terms := attemptTerms(signals.Suspect{Sandbox: l.Sandbox, Destination: l.Destination})
	return address("/requests", append(terms, term("up", ">=64k")), nil)
}

// actsOf returns what a person may do about the first of some flows that the page holds.
func (s *Server) actsOf(flows []string, undo *undoable) (all []act) {
	for _, flow := range flows {
		id, _ := record.ParseID(flow)
		if row, known := s.index.ByFlow(id); known {
			s.index.Shapes([]uint32{row.Shape}, func(_ uint32, r *record.Record) { all = s.acts(r, flow, undo.about(r)) })
			return all
		}
	}
	return nil
}
