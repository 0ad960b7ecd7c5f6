package source

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/quantity"
)

// A Run is one egressd run. Its folder below [config.RunsBeside] holds it as [RunFile].
type Run struct {
	ID      string    `json:"run"`
	Began   time.Time `json:"began"`
	Sandbox string    `json:"sandbox,omitempty"`
	Program string    `json:"program,omitempty"` // base name of its file
	Daemon  bool      `json:"daemon,omitempty"`  // an egressd serve decided and recorded for the run
	Log     string    `json:"log"`               // folder of the log
	Policy  string    `json:"policy,omitempty"`  // path of the policy file that --config named

	// Unknown until the run ended. They stay so if egressd was killed.
	Ended    *time.Time `json:"ended,omitempty"`
	Code     *int       `json:"exit_code,omitempty"`
	Requests int        `json:"requests"`
	Denied   int        `json:"denied"`

	Running bool `json:"running"`
}

// Result says how the run ended, for a person.
func (r *Run) Result() string {
	switch {
	case r.Running:
		return "running"
	case r.Code == nil || r.Ended == nil:
		return "unknown"
	default:
		return fmt.Sprintf("exit %d after %s", *r.Code, quantity.Duration(r.Ended.Sub(r.Began)))
	}
}

// RunFile is the file in a run's folder that holds its [Run]. Nobody vouches for it: the log is the proof.
const RunFile = "run.json"

// Write writes r into the run's folder.
func (r *Run) Write(folder string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, RunFile), append(text, '\n'), 0o600)
}

// ReadRun reads the run with a folder. A run without [RunFile] has only what its id says.
func ReadRun(folder string) Run {
	r := Run{ID: filepath.Base(folder), Log: folder}
	if text, err := os.ReadFile(filepath.Join(folder, RunFile)); err == nil {
		_ = json.Unmarshal(text, &r) // what it cannot read is left out
		r.ID = filepath.Base(folder)
		if !r.Daemon {
			r.Log = folder
		}
	}
	if r.Began.IsZero() && len(r.ID) >= len(config.RunTime) {
		r.Began, _ = time.Parse(config.RunTime, r.ID[:len(config.RunTime)])
	}
	r.Running = r.Ended == nil && isLocked(filepath.Join(folder, "lock"))
	return r
}

// isLocked reports whether a process holds a file, as egressd does with that of its log.
func isLocked(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil
}

func (s *Source) runsFolder() (string, error) {
	dir, err := s.daemonLog()
	return config.RunsBeside(dir), err
}

// RunsIndex returns the folder of the index of all runs.
func (s *Source) RunsIndex() (string, error) {
	folder, err := s.runsFolder()
	return config.RunsIndexBeside(folder), err
}

// ListRuns returns the newest runs, the newest first; most is 0 for all.
func (s *Source) ListRuns(most int) (all []Run, err error) {
	folder, err := s.runsFolder()
	if err != nil {
		return nil, err
	}
	for _, id := range s.Runs() {
		if most > 0 && len(all) == most {
			break
		}
		all = append(all, ReadRun(filepath.Join(folder, id)))
	}
	return all, nil
}

// Runs returns the ids of all runs, the newest first.
func (s *Source) Runs() (all []string) {
	folder, err := s.runsFolder()
	if err != nil {
		return nil
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil
	}
	for _, e := range slices.Backward(entries) {
		all = append(all, e.Name())
	}
	return all
}

// OfDaemon reports whether s names a run whose records are in a daemon's log.
func (s *Source) OfDaemon() bool {
	r, err := s.run()
	return err == nil && r.Daemon
}

func (s *Source) run() (Run, error) {
	if s.Run == AllRuns {
		return Run{}, hint.Misused(errors.New("this command reads the log of one run, not of all"), "the same command with --run last, or with an ID that egressd log --runs lists")
	}
	folder, err := s.runsFolder()
	if err != nil {
		return Run{}, err
	}
	dir, err := config.RunDir(folder, s.Run)
	if err != nil {
		return Run{}, err
	}
	return ReadRun(dir), nil
}
