package ui

import (
	"cmp"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/recovered"
)

// A verification is what came of reading the whole log and comparing it with its signatures.
type verification struct {
	mu   sync.Mutex // guards what follows
	last verified
}

type verified struct {
	Report *audit.Report
	Err    string
	Next   string // what to type after Err
	Busy   bool
	At     time.Time // zero: never
	Took   time.Duration
}

// Good reports whether the log is what its key signed.
func (v verified) Good() bool {
	return v.Report != nil && (v.Report.Code == audit.Good || v.Report.Code == audit.TornTail)
}

// verify begins to verify the log, unless that goes on already, and returns what is known.
func (s *Server) verify(again bool) verified {
	v := &s.verified
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.last.Busy && (again || v.last.At.IsZero()) {
		v.last.Busy = true
		s.work.Go(s.verifyNow)
	}
	return v.last
}

func (s *Server) verifyNow() {
	begin := time.Now()
	next := verified{Err: "the verification failed; standard error of egressd ui says why"}
	defer func() {
		s.verified.mu.Lock()
		defer s.verified.mu.Unlock()
		next.At, next.Took = time.Now(), time.Since(begin)
		s.verified.last = next
	}()
	defer recovered.Log("verifying the log", nil)
	key, err := "", error(nil)
	if s.options.Key != nil {
		key, err = s.options.Key()
	}
	var report *audit.Report
	if err == nil {
		report, err = audit.Verify(s.options.Dir, key, nil)
	}
	next.Report, next.Err = report, ""
	if err != nil {
		next.Err = err.Error()
		var told *hint.Error
		if errors.As(err, &told) {
			next.Next = told.Hint
		}
		next.Next = cmp.Or(next.Next, "egressd log verify"+s.options.Flags)
	}
}

type healthView struct {
	verified
	Events     []event
	Checkpoint string
	Flags      string
}

func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	v := healthView{verified: s.verify(false), Events: s.events(40), Flags: s.options.Flags}
	if text, err := audit.NewestCheckpoint(s.options.Dir); err == nil {
		v.Checkpoint = string(text)
	}
	s.write(w, r, http.StatusOK, "health", nil, nil, v)
}

func (s *Server) verifyAgain(w http.ResponseWriter, r *http.Request) {
	s.verify(true)
	http.Redirect(w, r, "/health", http.StatusSeeOther)
}

func (s *Server) help(w http.ResponseWriter, r *http.Request) { s.show(w, r, "help", nil) }
