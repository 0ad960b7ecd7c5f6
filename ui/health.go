package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/daemon/policystatus"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/recovered"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/sink"
)

// A verification is what came of reading the whole log and comparing it with its signatures.
type verification struct {
	mu   sync.Mutex // guards what follows
	last verified
}

type verified struct {
	Report *verify.Report // of several logs: that of the first one that is not good, else the sum
	Err    string
	Next   string // what to type after Err
	Busy   bool
	At     time.Time // zero: never
	Took   time.Duration

	runs map[string]string // verdict by run
}

// Good reports whether the log is what its key signed.
func (v verified) Good() bool {
	return v.Report != nil && (v.Report.Code == verify.Good || v.Report.Code == verify.TornTail)
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

// Changed reports whether somebody changed or shortened the log.
func (v verified) Changed() bool {
	return v.Report != nil && (v.Report.Code == verify.Tampered || v.Report.Code == verify.Truncated)
}

// Unknown says why it cannot be told whether somebody changed the log. It returns "" if that can be told.
func (v verified) Unknown() string {
	if v.Report != nil && v.Report.Code == verify.Unknown {
		return v.Report.Problem
	}
	return v.Err
}

// lastVerified returns the last verification. A log without a daemon is verified when a view of it is asked for first.
func (s *Server) lastVerified() verified {
	if s.options.Dial == nil {
		return s.verify(s.hasNewRun())
	}
	s.verified.mu.Lock()
	defer s.verified.mu.Unlock()
	return s.verified.last
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
	if s.options.Runs != nil {
		next = s.verifyRuns()
		return
	}
	report, err := s.verifyLog(s.options.Dir)
	next = verified{Report: report}
	if err != nil {
		next.Err = err.Error()
		next.Next = cmp.Or(hint.Next(err), "egressd log verify"+s.options.Flags)
	}
}

// verifyLog verifies one log. For a run, the checkpoint in the index of runs shows whether its end was cut off.
func (s *Server) verifyLog(dir string) (*verify.Report, error) {
	key, ended, err := "", "", error(nil)
	if s.options.Key != nil {
		key, ended, err = s.options.Key(dir)
	}
	if notGood, ok := errors.AsType[*verify.NotGoodError](err); ok { // the index of runs
		return notGood.Report, nil
	}
	if err != nil {
		return nil, err
	}
	var given []byte
	if ended != "" {
		given = []byte(ended + "\n")
	}
	if key == "" { // somebody who changed records, and not the checkpoints beside them, is still found
		return verify.Quick(dir, key, given)
	}
	return verify.Log(dir, key, given)
}

// verifyRuns verifies the logs of all runs.
func (s *Server) verifyRuns() verified {
	all, err := s.options.Runs()
	v := verified{Report: &verify.Report{Verdict: "good"}, runs: map[string]string{}}
	if err != nil {
		return verified{Err: err.Error(), Next: hint.Next(err)}
	}
	worst := verify.Good
	for _, run := range all {
		if run.Daemon || s.context.Err() != nil {
			continue
		}
		report, err := s.verifyLog(run.Log)
		switch {
		case errors.Is(err, fs.ErrNotExist): // it has no log yet
			continue
		case err != nil:
			report = &verify.Report{Code: verify.Unknown, Verdict: "unknown", Problem: err.Error()}
		case run.Running && report.Code == verify.Unknown: // it is not in the index of runs yet
			v.runs[run.ID] = "not signed yet"
			continue
		}
		v.runs[run.ID] = report.Verdict
		if badness(report.Code) > badness(worst) {
			worst = report.Code
			report.Problem = "run " + run.ID + ": " + report.Problem
			v.Report = report
		}
		if worst == verify.Good {
			v.Report.Records, v.Report.Segments, v.Report.Epochs = v.Report.Records+report.Records, v.Report.Segments+report.Segments, v.Report.Epochs+report.Epochs
			v.Report.Unsigned, v.Report.Unvouched = v.Report.Unsigned+report.Unsigned, v.Report.Unvouched+report.Unvouched
		}
	}
	return v
}

// badness orders the codes of verification: what somebody did comes before what nobody knows, and before what is torn.
func badness(code int) int {
	return slices.Index([]int{verify.Good, verify.TornTail, verify.Unknown, verify.Truncated, verify.Tampered}, code)
}

// hasNewRun reports whether a run has ended since the last verification.
func (s *Server) hasNewRun() bool {
	if s.options.Runs == nil {
		return false
	}
	all, err := s.options.Runs()
	s.verified.mu.Lock()
	defer s.verified.mu.Unlock()
	return err == nil && !s.verified.last.At.IsZero() && newestEnd(all).After(s.verified.last.At.Add(-s.verified.last.Took))
}

type healthView struct {
	verified
	Events     []event
	Checkpoint string // the newest; of a log that was changed, the newest that its records agree with
	WrongURL   string // of the requests among which the first wrong record is
	Flags      string
	Sinks      []sink.State
	SinksErr   error
	Selftest   *selftested   // nil for the log of another machine
	Daemon     *daemonHealth // nil for a log alone
}

// A daemonHealth is what the daemon says of itself.
type daemonHealth struct {
	admin.Readiness
	Open    int // flows
	Policy  policystatus.Status
	Latency admin.Latency
	Err     error
}

func (s *Server) askHealth(ctx context.Context) *daemonHealth {
	if s.options.Dial == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	h := &daemonHealth{}
	var flows admin.Page
	d, err := s.options.Dial()
	if err == nil {
		_, err = d.Send(ctx, http.MethodGet, "/readyz", nil, &h.Readiness, http.StatusServiceUnavailable)
	}
	if err == nil {
		_, err = d.Send(ctx, http.MethodGet, "/v1/flows?limit=1", nil, &flows)
	}
	if err == nil {
		_, err = d.Send(ctx, http.MethodGet, "/v1/policy", nil, &h.Policy)
	}
	if err == nil {
		_, _ = d.Send(ctx, http.MethodGet, "/v1/latency", nil, &h.Latency) // an older daemon does not know it
	}
	h.Open, h.Err = flows.Open, err
	return h
}

func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	v := healthView{verified: s.verify(s.hasNewRun()), Events: s.events(40), Flags: s.options.Flags}
	if s.options.Runs == nil { // each run has its own
		if v.Changed() {
			v.Checkpoint = v.Report.Newest
		} else if text, err := verify.NewestCheckpoint(s.options.Dir); err == nil {
			v.Checkpoint = string(text)
		}
		v.Sinks, v.SinksErr = sink.States(s.options.Dir)
	}
	if s.options.Selftest != nil {
		t := s.tested.state()
		v.Selftest = &t
	}
	if c := v.Report; c != nil && c.From != nil && s.options.Runs == nil {
		v.WrongURL = address("/requests", []string{term("seq", fmt.Sprintf("%d..%d", *c.From, max(*c.To-1, *c.From)))}, nil)
	}
	v.Daemon = s.askHealth(r.Context())
	s.write(w, r, http.StatusOK, "health", nil, nil, v)
}

func (s *Server) verifyAgain(w http.ResponseWriter, r *http.Request) {
	s.verify(true)
	http.Redirect(w, r, "/health", http.StatusSeeOther)
}

// state is what surrounds every view, for views that no link leads to.
func (s *Server) state(w http.ResponseWriter, r *http.Request) { s.show(w, r, "state-alone", nil) }

func (s *Server) help(w http.ResponseWriter, r *http.Request) { s.show(w, r, "help", logs.FilterHelp) }
