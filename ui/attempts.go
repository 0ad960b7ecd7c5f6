package ui

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/internal/recovered"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/signals"
)

// An attemptsJob looks for signs of data being sent out. That reads the whole log, so it goes on beside
// requests, one filter at a time.
type attemptsJob struct {
	mu     sync.Mutex // guards what follows
	filter string
	found  []signals.Suspect
	at     time.Time // when found was complete; zero while the first search goes on
	next   int64     // the records up to here were searched
	err    error
	busy   bool
	cancel context.CancelFunc
}

// An attemptsState is what is known of a search.
type attemptsState struct {
	Found []signals.Suspect
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
		j.filter, j.found, j.at, j.next, j.err, j.busy = text, nil, time.Time{}, 0, nil, false
	}
	if !j.busy && (j.at.IsZero() || j.next < progress.Next && time.Since(j.at) > attemptsAge) {
		ctx, cancel := context.WithCancel(s.context)
		j.busy, j.cancel = true, cancel
		s.work.Go(func() { s.searchLog(ctx, text, f, progress.Next) })
	}
	return attemptsState{j.found, !j.at.IsZero(), j.busy, j.at, j.err}
}

func (s *Server) searchLog(ctx context.Context, text string, f *logs.Filter, next int64) {
	defer recovered.Log("looking for attempts", nil)
	var finder signals.Finder
	log, err := s.openLogs(f.Run, 0)
	if err == nil {
		err = log.DecisionsUntil(ctx, f, finder.Add)
		log.Close()
	}
	j := &s.attempts
	j.mu.Lock()
	defer j.mu.Unlock()
	if ctx.Err() != nil || j.filter != text {
		return // another filter is asked for
	}
	j.found, j.at, j.next, j.err, j.busy = finder.Suspects(), time.Now(), next, err, false
}

type attemptsView struct {
	attemptsState
	Stories []attemptStory
	More    int
}

// An attemptStory is an attempt with the addresses of its records.
type attemptStory struct {
	signals.Suspect
	Strong bool
	URL    string
}

const (
	attemptsShown = 50
	strongScore   = 40 // ordinary programs score less
)

func (s *Server) attemptsView(w http.ResponseWriter, r *http.Request) {
	q := s.readQuery(r, "/attempts")
	v := attemptsView{attemptsState: s.search(strings.Join(q.words, " "), q.filter)}
	for _, a := range v.Found {
		if len(v.Stories) == attemptsShown {
			v.More = len(v.Found) - attemptsShown
			break
		}
		var terms []string
		if a.Sandbox != "" {
			terms = append(terms, term("sandbox", a.Sandbox))
		}
		if a.Program != "" && a.Program != signals.Beyond {
			terms = append(terms, term("proc", a.Program))
		}
		if a.Destination != signals.Beyond && a.Destination != "many" {
			terms = append(terms, term("host", "*"+a.Destination))
		}
		v.Stories = append(v.Stories, attemptStory{a, a.Score >= strongScore, q.with("/requests", terms...)})
	}
	s.write(w, r, http.StatusOK, "attempts", q, nil, v)
}
