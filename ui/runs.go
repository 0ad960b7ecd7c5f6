package ui

import (
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/logs/index"
	"github.com/egressd/egressd/logs/source"
)

// A runRow is one run of egressd run, and the sums of its log.
type runRow struct {
	source.Run
	Sums   index.LogSum
	Result string
	URL    string // of its requests; "" if they are in the log of egressd serve
	Failed error  // why its log cannot be read
	Trust  string // what came of verifying its log
}

type runsView struct {
	Rows   []runRow
	More   int
	AllURL string
	Err    error
}

const runsShown = 200

// runs lists the runs with what matches the filter in each.
func (s *Server) runs(w http.ResponseWriter, r *http.Request) {
	q := s.readQuery(r, "/runs")
	all, err := s.options.Runs()
	v := runsView{Err: err, AllURL: q.without("run")}
	sums, verified := s.index.ByLog(r.Context(), q.filter), s.lastVerified()
	var rows []runRow
	for _, run := range all {
		if q.filter.Run != "" && run.ID != q.filter.Run {
			continue
		}
		row := runRow{Run: run, Result: run.Result(), Failed: s.index.Failed(run.Log)}
		if sum := sums[run.Log]; sum != nil && !run.Daemon {
			row.Sums = *sum
		}
		if !run.Daemon {
			row.URL = q.with("/", term("run", run.ID))
			row.Trust = verified.runs[run.ID]
		}
		rows = append(rows, row)
	}
	sorted(q, rows, map[string]func(a, b runRow) int{
		"began": func(a, b runRow) int { return a.Began.Compare(b.Began) }, "program": by(func(r runRow) string { return r.Program }),
		"sandbox": by(func(r runRow) string { return r.Sandbox }), "result": by(func(r runRow) string { return r.Result }),
		"denied": by(func(r runRow) int64 { return r.Sums.Denied }), "asked": by(func(r runRow) int64 { return r.Sums.Asked }), "allowed": by(func(r runRow) int64 { return r.Sums.Allowed }),
		"up": by(func(r runRow) int64 { return r.Sums.Up }), "down": by(func(r runRow) int64 { return r.Sums.Down }),
		"log": by(func(r runRow) string { return r.Trust }), "run": by(func(r runRow) string { return r.ID }),
	})
	v.Rows = rows[:min(len(rows), runsShown)]
	v.More = len(rows) - len(v.Rows)
	s.write(w, r, http.StatusOK, "runs", q, s.index.Sum(r.Context(), q.filter, nil), v)
}

// runLogs returns the folders of the runs that have a log of their own, the oldest first.
func (s *Server) runLogs() (dirs []string) {
	all, _ := s.options.Runs() // the view says why it cannot be read
	for i := len(all) - 1; i >= 0; i-- {
		if !all[i].Daemon {
			dirs = append(dirs, all[i].Log)
		}
	}
	return dirs
}

// run returns the run with an ID, or the last one.
func (s *Server) run(id string) (source.Run, error) {
	all, err := s.options.Runs()
	if err != nil {
		return source.Run{}, err
	}
	for _, run := range all {
		if run.ID == id || id == "last" && !run.Daemon {
			return run, nil
		}
	}
	return source.Run{}, fmt.Errorf("there is no run %q", id)
}

// logOf returns the folder of the log, or of the log of a run.
func (s *Server) logOf(run string) (string, error) {
	if s.options.Runs == nil {
		return s.options.Dir, nil
	}
	found, err := s.run(run)
	if err != nil {
		return "", hint.Misused(err, "run=ID; egressd log --runs lists the IDs")
	}
	return found.Log, nil
}

// openLogs opens the log from a record on. On a page of runs, it opens the log of one run, or the logs of all.
func (s *Server) openLogs(run string, from int64) (*source.RecordReader, error) {
	if s.options.Runs == nil {
		return source.At(s.options.Dir, from)
	}
	var dirs []string
	for _, dir := range s.runLogs() {
		if run == "" || filepath.Base(dir) == run {
			dirs = append([]string{dir}, dirs...)
		}
	}
	return source.Several(s.options.Dir, dirs), nil
}

// newestEnd returns when the last run ended that has.
func newestEnd(all []source.Run) (last time.Time) {
	for _, run := range all {
		if run.Ended != nil && run.Ended.After(last) {
			last = *run.Ended
		}
	}
	return last
}
