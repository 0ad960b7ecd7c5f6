package runs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/egressd/egressd/logs/export"
	"github.com/egressd/egressd/logs/sink"
)

// A run keeps the state of its sinks in the folder of its log. If every sink has got all records, the run removes that state
// when it ends. So a log of an ended run with such a state is one that a sink lacks records of.

// Unsent returns how many ended runs in the folder runs have records that a sink has not got.
func Unsent(runs string) (n int) {
	names, _ := namesIn(runs) // no folder: no run has been
	for _, name := range names {
		if dir := filepath.Join(runs, name); isRunName(name) && sink.Sends(dir) {
			if unlock, ended := takeEnded(dir); ended {
				unlock()
				n++
			}
		}
	}
	return n
}

// SendUnsent sends the records of ended runs that the sinks in configs have not got, the oldest run first, until ctx is done. It returns
// true if nothing is left to send. After a failed attempt it tries no further run. complain must be safe for concurrent use.
func SendUnsent(ctx context.Context, runs string, configs []sink.Config, complain func(error)) (all bool) {
	names, err := namesIn(runs)
	if err != nil {
		return true // no run has been
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !isRunName(name) || !sink.Sends(filepath.Join(runs, name)) })
	slices.Sort(names)
	for _, name := range names {
		if ctx.Err() != nil || !sendRun(ctx, filepath.Join(runs, name), configs, complain) {
			return false
		}
	}
	return true
}

// sendRun sends what is left of one run. It returns false if a receiver does not take it.
func sendRun(ctx context.Context, dir string, configs []sink.Config, complain func(error)) bool {
	unlock, free := takeEnded(dir)
	if !free {
		return true // it goes on, or another process sends it
	}
	defer unlock()
	before, err := sink.States(dir)
	if err != nil {
		complain(fmt.Errorf("send the log of an earlier run: %w", err))
		return true
	}
	from, wanted := export.Here(), []sink.Config(nil)
	for i := range before {
		for _, c := range configs {
			if c.Name == before[i].Name {
				wanted = append(wanted, c)
			}
		}
		if before[i].Origin != "" {
			from.Log = before[i].Origin
		}
	}
	if from.Log != "" && len(wanted) > 0 {
		set := sink.NewSet(dir, from, complain)
		if err := set.Apply(wanted); err != nil {
			complain(err)
			return true
		}
		set.Finish(ctx)
	}
	return len(Settle(dir, configs)) == 0
}

// Settle removes the state of the sinks of a run that has ended, if none of configs lacks a record. Else it returns the states of those
// that do.
func Settle(dir string, configs []sink.Config) (lacking []sink.State) {
	states, err := sink.States(dir)
	if err != nil {
		return nil
	}
	for i := range states {
		s := &states[i]
		wanted := slices.ContainsFunc(configs, func(c sink.Config) bool { return c.Name == s.Name })
		if wanted && (s.LagRecords > 0 || len(s.Aside) > 0) {
			lacking = append(lacking, *s)
		}
	}
	if len(lacking) == 0 {
		_ = os.RemoveAll(sink.Folder(dir)) // what stays is looked at again
	}
	return lacking
}

// takeEnded locks the log of a run that has ended, so that nobody removes it and no other process sends it.
func takeEnded(dir string) (unlock func(), ok bool) {
	var files []*os.File
	unlock = func() {
		for _, f := range files {
			f.Close()
		}
	}
	for path, how := range map[string]int{filepath.Join(dir, lockName): syscall.LOCK_SH, filepath.Join(sink.Folder(dir), lockName): syscall.LOCK_EX} {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			unlock()
			return nil, false
		}
		files = append(files, f)
		if syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB) != nil {
			unlock()
			return nil, false
		}
	}
	return unlock, true
}

// removeUnsent removes the state of the sinks of a run whose log is to be removed. The error says what no sink has got.
func removeUnsent(dir string) error {
	states, err := sink.States(dir)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(sink.Folder(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var lost []string
	for i := range states {
		if n := states[i].LagRecords + int64(len(states[i].Aside)); n > 0 {
			lost = append(lost, fmt.Sprintf("%d records for the sink %s", n, states[i].Name))
		}
	}
	if len(lost) == 0 {
		return nil
	}
	return fmt.Errorf("the run %s was removed before it was sent: %s", filepath.Base(dir), strings.Join(lost, ", "))
}
