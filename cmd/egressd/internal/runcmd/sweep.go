package runcmd

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/config"
)

// A runRoom is what is kept of the logs of runs.
type runRoom struct {
	newest int           // of any age
	age    time.Duration // of all others
	most   int           // of any age, however many are made
	swept  int           // are removed at a time, so that nobody waits
}

var ordinaryRoom = runRoom{newest: 100, age: 30 * 24 * time.Hour, most: 10_000, swept: 200}

var (
	runName     = pattern(`^[0-9]{8}-[0-9]{6}\.[0-9]{3}-[0-9a-f]{6}$`)
	runFileName = pattern(`^[0-9]{8}\.(log|torn|ckpt|tree)$`)
)

// pattern compiles a regular expression when it is needed first: every start of the
// command would wait for it.
func pattern(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// lockName is the file by which a log is held while somebody writes it.
const lockName = "lock"

// sweep removes the logs of old runs. It leaves alone what is in use, what is not
// named as a run is, and folders that have anything in them but a log.
func (room runRoom) sweep(runs string, now time.Time) error {
	entries, err := os.ReadDir(runs)
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && runName().MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(b, a) }) // the newest first
	var problems []error
	swept := 0
	for i := len(names) - 1; i >= room.newest && swept < room.swept; i-- {
		began, err := time.Parse(config.RunTime, names[i][:len(config.RunTime)])
		if err != nil || i < room.most && now.Sub(began) < room.age {
			continue
		}
		swept++
		problems = append(problems, removeRun(filepath.Join(runs, names[i])))
	}
	return errors.Join(problems...)
}

// removeRun removes the folder of a run that has ended.
func removeRun(dir string) error {
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it is just being made, or is none of ours
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return nil // somebody writes it, or reads it
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || e.Name() != lockName && !runFileName().MatchString(e.Name()) {
			return nil
		}
	}
	for _, e := range entries {
		if e.Name() == lockName {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	if err := os.Remove(lock.Name()); err != nil {
		return err
	}
	return os.Remove(dir)
}
