package runs

import (
	"crypto/rand"
	"encoding/hex"
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
	"github.com/egressd/egressd/logs/sink"
)

// A retention says which logs of runs [Sweep] keeps.
type retention struct {
	newest int           // logs that are kept at any age
	age    time.Duration // of the other logs
	most   int           // logs that are kept at all
	swept  int           // logs that one call removes at most, so that the user does not wait
}

var usual = retention{newest: 100, age: 30 * 24 * time.Hour, most: 10_000, swept: 200}

// runFileName matches the files of a log. It is compiled on first use, because each start would wait for it.
var runFileName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(run\.json|[0-9]{8}\.(log|torn|ckpt|tree))$`) })

// isRunName reports whether a folder has the name of a run. It uses no regular expression, because there may be
// thousands of folders.
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

// lockName is the file that the writer of a log locks.
const lockName = "lock"

// Sweep removes the logs of old runs from the folder runs. It keeps logs that are in use, and folders that are not
// named like a run or hold other files.
func Sweep(runs string, now time.Time) error { return usual.sweep(runs, now) }

func (keep retention) sweep(runs string, now time.Time) error {
	names, err := namesIn(runs)
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !isRunName(name) })
	slices.Sort(names) // the oldest first
	young := now.Add(-keep.age).UTC().Format(config.RunTime)
	var problems []error
	swept := 0
	for i, name := range names {
		left := len(names) - i
		if left <= keep.newest || swept == keep.swept || left <= keep.most && name >= young {
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

// removeRun removes the log of a run that has ended.
func removeRun(dir string) error {
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the run is just starting, or the folder is not one of ours
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return nil // the log is being written or read
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	unsent := filepath.Base(sink.Folder(dir))
	for _, e := range entries {
		if e.IsDir() && e.Name() == unsent {
			continue
		}
		if !e.Type().IsRegular() || e.Name() != lockName && !runFileName().MatchString(e.Name()) {
			return nil
		}
	}
	lost := removeUnsent(dir) // while its records can be counted
	for _, e := range entries {
		if e.Name() == lockName || e.IsDir() {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	if err := os.Remove(lock.Name()); err != nil {
		return err
	}
	return errors.Join(lost, os.Remove(dir))
}

// NewID returns a name for a run that begins at now. Names sort by time.
func NewID(now time.Time) string {
	var b [3]byte
	_, _ = rand.Read(b[:]) // never fails
	return now.UTC().Format(config.RunTime) + "-" + hex.EncodeToString(b[:])
}
