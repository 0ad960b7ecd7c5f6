package ui

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/recovered"
)

// An Escape is a known way out of a sandbox that the self-test tried.
type Escape struct {
	Name    string `json:"name"`
	Escaped string `json:"escaped"` // how it got out; "" if it did not
}

// selftestMost bounds a self-test. One takes about a second.
const selftestMost = time.Minute

// A selftest is the last self-test that a person asked for.
type selftest struct {
	mu   sync.Mutex // guards what follows
	last selftested
}

type selftested struct {
	Tried []Escape
	Out   int // of Tried, those that got out
	Err   string
	Next  string // what to type after Err
	Busy  bool
	At    time.Time // zero: never
}

func (t *selftest) state() selftested {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// selftest begins a self-test, unless one goes on already.
func (s *Server) selftest(w http.ResponseWriter, r *http.Request) {
	t := &s.tested
	t.mu.Lock()
	if !t.last.Busy {
		t.last.Busy = true
		s.work.Go(s.selftestNow)
	}
	t.mu.Unlock()
	http.Redirect(w, r, "/health", http.StatusSeeOther)
}

func (s *Server) selftestNow() {
	next := selftested{Err: "the self-test failed; standard error of egressd ui says why"}
	defer func() {
		next.At = time.Now()
		s.tested.mu.Lock()
		defer s.tested.mu.Unlock()
		s.tested.last = next
	}()
	defer recovered.Log("testing the sandbox", nil)
	ctx, cancel := context.WithTimeout(s.context, selftestMost)
	defer cancel()
	tried, err := s.options.Selftest(ctx)
	next.Tried, next.Err = tried, ""
	for _, one := range tried {
		if one.Escaped != "" {
			next.Out++
		}
	}
	if err != nil {
		next.Err, next.Next = err.Error(), hint.Next(err)
	}
}
