package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/audit/verify"
)

// failing are the system calls by which a log is locked, cut, and rid of files and keys.
// With EGRESSD_AUDIT_CALLS set those by which it is written fail, too.
var failing = []struct {
	name  string
	call  int
	least int // how often a log that does all of it makes them
}{
	{"flock", unix.SYS_FLOCK, 1},
	{"truncate", unix.SYS_TRUNCATE, 1},
	{"ftruncate", unix.SYS_FTRUNCATE, 1},
	{"unlinkat", unix.SYS_UNLINKAT, 12},
	{"pwrite64", unix.SYS_PWRITE64, 4},
	{"fsync", unix.SYS_FSYNC, 10},
	{"fdatasync", unix.SYS_FDATASYNC, 10},
	{"renameat", unix.SYS_RENAMEAT, 4},
	{"openat", unix.SYS_OPENAT, 40},
}

const callsVariable = "EGRESSD_AUDIT_CALLS"

// callsNow returns how many of failing are to fail, with how many errors, and every which
// call is to be the last one of a process.
func callsNow() (kinds, errors, step int) {
	if os.Getenv(callsVariable) != "" {
		return len(failing), 2, 1
	}
	return 5, 1, 3
}

// inMemory is a folder for a test to which the disk does not matter.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "egressd-audit-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// A crashedLog is a log as a crash has left it, with something of everything that is
// put right when it is opened.
type crashedLog struct {
	files map[string][]byte
	keys  map[string][]byte
	key   string
	names []string // of its records
}

func newCrashedLog(t *testing.T) *crashedLog {
	t.Helper()
	s := signed(t, Options{SegmentBytes: 400})
	c := &crashedLog{key: s.key, names: names(t, s.dir), keys: map[string][]byte{}}
	for number := 1; number <= 3; number++ {
		if err := removeSegment(&format.Pruned{Dir: s.dir}, number); err != nil {
			t.Fatal(err)
		}
	}
	files := s.files(t)
	c.files = packFiles(files, 2, 1)
	c.files[format.RemovedName] = c.files[format.RemovedName][:len(c.files[format.RemovedName])-7]
	end := filepath.Base(format.SegmentPath(s.dir, last(numbersOf(t, s.dir))))
	c.files[end] = append(c.files[end], `{"v":1,"seq":30,"ti`...)
	c.files[".new-123"] = []byte("left")
	folder := keyFolder(s.dir, "")
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		c.keys[e.Name()] = readFile(t, filepath.Join(folder, e.Name()))
		c.keys[strings.TrimSuffix(e.Name(), ".key")+".next"] = readFile(t, filepath.Join(folder, e.Name()))[:90] // that was begun
	}
	return c
}

// lay makes the log anew below a folder.
func (c *crashedLog) lay(t *testing.T, below string) (dir string) {
	t.Helper()
	dir = filepath.Join(below, "audit")
	for folder, files := range map[string]map[string][]byte{dir: c.files, keyFolder(dir, ""): c.keys} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, content := range files {
			writeFile(t, filepath.Join(folder, name), content)
		}
	}
	return dir
}

// crashedOptions keep the segment that has a torn end.
var crashedOptions = Options{SegmentBytes: 400, Retain: Retain{Segments: 4}}

// useLog opens the log, has it go on in fresh segments after a failure of its own, and adds
// some records. It reports those that are durable, and how many it has tried to add.
func useLog(dir string, o Options, full *os.File, report func(seq int64, name string)) (tried int, err error) {
	l, err := Open(dir, o)
	if err != nil {
		return 0, err
	}
	for ; tried < 12; tried++ {
		if tried == 4 {
			breakSegment(l, full)
		}
		name := fmt.Sprint("used", tried)
		seq, err := l.Append([]byte(named(name)))
		for range 3 {
			if err == nil {
				break
			}
			if err = l.Reopen(); err == nil {
				seq, err = l.Append([]byte(named(name)))
			}
		}
		if err == nil {
			err = errors.Join(err, waited(l, seq))
		}
		if err == nil {
			report(seq, name)
		}
		_, _ = l.Checkpoint() // an error is the log's
	}
	return tried, l.Close()
}

func waited(l *Log, seq int64) error {
	answer := make(chan error, 1)
	l.Durable(seq, func(err error) { answer <- err })
	return <-answer
}

// breakSegment has the next write fail, without a call that is injected.
func breakSegment(l *Log, full *os.File) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.syncing.Lock()
	defer l.syncing.Unlock()
	if err := syscall.Dup3(int(full.Fd()), int(l.segment.Fd()), syscall.O_CLOEXEC); err != nil {
		panic(err)
	}
}

// check opens the log once more, as it is after a fault, and sees that it holds what was
// durable and nothing that was not tried, and is good.
func (c *crashedLog) check(t *testing.T, what, dir string, durable map[int64]string) {
	t.Helper()
	l, err := Open(dir, crashedOptions)
	if err != nil {
		t.Errorf("%s: it is not opened any more: %v", what, err)
		return
	}
	if _, err := l.Append([]byte(named("afterwards"))); err != nil {
		t.Errorf("%s: it admits nothing: %v", what, err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	r, err := verify.Log(dir, c.key, nil)
	if err != nil || r.Code != verify.Good || r.Unsigned != 0 {
		t.Errorf("%s: %+v, %v", what, r, err)
		return
	}
	there := c.read(t, what, dir)
	for seq, name := range durable {
		if there[seq] != name && there[seq] != "" { // else it was removed
			t.Errorf("%s: record %d was durable as %q, and is %q", what, seq, name, there[seq])
		}
		if seq >= r.Records {
			t.Errorf("%s: record %d was durable, and there are %d", what, seq, r.Records)
		}
	}
	if files := (&signedLog{dir: dir}).files(t); len(files) > 17 {
		t.Errorf("%s: %d files are left", what, len(files))
	}
	secrets, err := filepath.Glob(filepath.Join(keyFolder(dir, ""), "*"))
	if err != nil || len(secrets) != 1 {
		t.Errorf("%s: the keys are %q, %v", what, secrets, err)
	}
}

// read returns what records the log holds: each once, and none that was not tried.
func (c *crashedLog) read(t *testing.T, what, dir string) map[int64]string {
	t.Helper()
	r, err := NewReader(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	there, before := map[int64]string{}, map[string]bool{}
	for {
		line, err := r.Next()
		if err == io.EOF {
			return there
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return there
		}
		seq, err := format.CheckLine(line)
		name := string(bytes.Split(line, []byte(`"`))[11])
		if err != nil || before[name] && name != "afterwards" {
			t.Errorf("%s: record %d is %s, %v", what, seq, line, err)
		}
		there[seq], before[name] = name, true
	}
}

// TestEveryCallFails has each call of some kinds fail once, at every moment from opening
// a log that a crash has left to closing it. It goes on by itself, or is not opened and
// is opened the next time, and nothing is lost that was durable.
func TestEveryCallFails(t *testing.T) {
	if !inChild(t, nil) {
		return
	}
	c := newCrashedLog(t)
	var calls []int
	for _, f := range failing {
		calls = append(calls, f.call)
	}
	in, broken := newInjector(t, calls...), full(t)
	defer broken.Close()
	kinds, errnos, _ := callsNow()
	for _, f := range failing[:kinds] {
		for _, errno := range []syscall.Errno{syscall.EIO, syscall.ENOSPC}[:errnos] {
			n := 1
			for ; n < 500; n++ {
				dir := c.lay(t, inMemory(t))
				what := fmt.Sprintf("%s %d: %v", f.name, n, errno)
				var said []error
				o := crashedOptions
				o.Trouble = func(err error) { said = append(said, err) }
				durable := map[int64]string{}
				in.arm(f.call, n, errno)
				tried, err := useLog(dir, o, broken, func(seq int64, name string) { durable[seq] = name })
				seen := in.arm(0, 0, 0)
				if tried > 0 && len(durable) < 11 {
					t.Errorf("%s: of %d records %d are durable (%v)", what, tried, len(durable), err)
				}
				if (err != nil || len(said) > 0) && seen < n {
					t.Errorf("no call failed: %v, %v", err, said)
				}
				c.check(t, what, dir, durable)
				if seen < n {
					break
				}
			}
			t.Logf("%s: each of %d calls failed with %v", f.name, n-1, errno)
			if n-1 < f.least || n == 500 {
				t.Errorf("%s: there were %d calls", f.name, n-1)
			}
		}
	}
}

// TestEveryCallIsTheLast ends a process at each of its calls of some kinds.
func TestEveryCallIsTheLast(t *testing.T) {
	if at := os.Getenv("AUDIT_TEST_LAST"); at != "" {
		var call, n int
		if _, err := fmt.Sscan(at, &call, &n); err != nil {
			t.Fatal(err)
		}
		in, broken := newInjector(t, call), full(t)
		in.arm(call, n, 0)
		_, err := useLog(os.Getenv("AUDIT_TEST_CHILD"), crashedOptions, broken, func(seq int64, name string) { fmt.Println("reported", seq, name) })
		fmt.Println("over", err)
		os.Exit(0)
	}
	c := newCrashedLog(t)
	kinds, _, step := callsNow()
	for _, f := range failing[:kinds] {
		n := 1
		for ; n < 500; n += step {
			dir := c.lay(t, inMemory(t))
			durable, over := useAndDie(t, dir, f.call, n)
			if over {
				break
			}
			c.check(t, fmt.Sprintf("killed at %s %d", f.name, n), dir, durable)
		}
		t.Logf("%s: the process ended at %d of %d calls", f.name, (n-1)/step, n-1)
		if n-1 < f.least || n == 500 {
			t.Errorf("%s: there were %d calls", f.name, n-1)
		}
	}
}

// useAndDie runs a process that uses a log until its n-th call. It returns which records
// it said are durable, and whether it came to its end.
func useAndDie(t *testing.T, dir string, call, n int) (durable map[int64]string, over bool) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^TestEveryCallIsTheLast$")
	child.Env = append(os.Environ(), "AUDIT_TEST_CHILD="+dir, fmt.Sprintf("AUDIT_TEST_LAST=%d %d", call, n))
	out, err := child.Output()
	var killed *exec.ExitError
	if err != nil && (!errors.As(err, &killed) || killed.Exited()) {
		t.Fatalf("child: %v\n%s", err, out)
	}
	durable = map[int64]string{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if fields[0] == "over" {
			over = true
			continue
		}
		seq, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			t.Fatalf("child: %s", line)
		}
		durable[seq] = fields[2]
	}
	return durable, over
}
