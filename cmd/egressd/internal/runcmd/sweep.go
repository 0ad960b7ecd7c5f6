package runcmd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/egressd/egressd/config"
)

// A runRoom is what is kept of the logs of runs.
type runRoom struct {
	newest int           // of any age
	age    time.Duration // of all others
	most   int           // of any age, however many are made
	swept  int           // are removed at a time, so that nobody waits
}

var ordinaryRoom = runRoom{newest: 100, age: 30 * 24 * time.Hour, most: 10_000, swept: 200}

// runFileName is compiled when it is needed first: every start of the command would wait for it.
var runFileName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9]{8}\.(log|torn|ckpt|tree)$`) })

// isRunName reports whether a folder is called as a run is. There may be thousands of
// them, for which a regular expression takes as long as a start.
func isRunName(name string) bool {
	const like = "00000000-000000.000-xxxxxx"
	if len(name) != len(like) {
		return false
	}
	for i := range len(like) {
		c := name[i]
		digit := '0' <= c && c <= '9'
		switch like[i] {
		case '0':
			if !digit {
				return false
			}
		case 'x':
			if !digit && (c < 'a' || c > 'f') {
				return false
			}
		default:
			if c != like[i] {
				return false
			}
		}
	}
	return true
}

// lockName is the file by which a log is held while somebody writes it.
const lockName = "lock"

// sweep removes the logs of old runs. It leaves alone what is in use, what is not
// named as a run is, and folders that have anything in them but a log.
func (room runRoom) sweep(runs string, now time.Time) error {
	names, err := namesIn(runs)
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !isRunName(name) })
	slices.Sort(names) // the oldest first
	young := now.Add(-room.age).UTC().Format(config.RunTime)
	var problems []error
	swept := 0
	for i, name := range names {
		left := len(names) - i
		if left <= room.newest || swept == room.swept || left <= room.most && name >= young {
			break
		}
		if _, err := time.Parse(config.RunTime, name[:len(config.RunTime)]); err != nil {
			continue
		}
		dir := filepath.Join(runs, name)
		if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
			continue
		}
		swept++
		problems = append(problems, removeRun(dir))
	}
	return errors.Join(problems...)
}

func namesIn(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
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
