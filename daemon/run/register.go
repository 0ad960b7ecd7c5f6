package run

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/egressd/egressd/daemon"
	"github.com/egressd/egressd/daemon/runs"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/logs/source"
)

// register has egressd log --runs list the run. A run whose daemon is another has a folder for that alone.
func (r *runner) register() {
	now := time.Now()
	if r.beside != nil {
		r.index.Run = runs.NewID(now)
		r.folder = filepath.Join(r.runs, r.index.Run)
		if err := os.MkdirAll(r.folder, 0o700); err != nil {
			r.Complain(fmt.Errorf("list the run: %w", err))
			return
		}
		r.running = lockedFile(filepath.Join(r.folder, "lock"))
	}
	r.entry = source.Run{ID: r.index.Run, Began: now, Sandbox: r.name, Program: filepath.Base(r.argv[0]), Daemon: r.beside != nil, Log: r.folder}
	if r.options.Config != "" {
		r.entry.Policy, _ = filepath.Abs(r.options.Config)
	}
	if r.beside != nil {
		r.entry.Log, _ = r.Config.AuditDir()
		r.records, _ = source.Ending(r.entry.Log)
	}
	r.writeEntry()
}

// lockedFile makes a file that is locked until it is closed, as the log of a run has one: nobody removes the folder
// meanwhile, and egressd log --runs sees that the run goes on.
func lockedFile(path string) *os.File {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		_ = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	return f
}

func (r *runner) writeEntry() {
	if err := r.entry.Write(r.folder); err != nil {
		r.Complain(fmt.Errorf("list the run: %w", err))
	}
}

// registerEnd completes the entry of egressd log --runs.
func (r *runner) registerEnd(code int, c egress.Counts) {
	now := time.Now()
	r.entry.Ended, r.entry.Code, r.entry.Requests = &now, &code, c.Requests
	for i := range c.Denied {
		r.entry.Denied += c.Denied[i].Times
	}
	r.writeEntry()
}

// logCommand is the command that shows what the run did.
func (r *runner) logCommand() string {
	switch {
	case r.moved && r.beside == nil:
		return "egressd log --dir " + shell.Word(r.folder)
	case r.moved:
		return "egressd log sandbox:" + shell.Word(r.name) + daemon.ConfigFlag(r.options.Config)
	}
	return "egressd log --run " + r.index.Run + daemon.ConfigFlag(r.options.Config)
}
