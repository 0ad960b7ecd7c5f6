package load

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

// A state is what a process has of all that may be left behind.
type state struct {
	descriptors, goroutines, threads int
	sockets                          int // of the kernel, in the whole gateway
	resident                         int // memory in KiB, of which so much is
	anonymous                        int // its own: the rest are pages of files, which the kernel takes back at will
	live                             int // MiB of it that the collector found in use last
	files, fileBytes                 int // beside the log
	segments                         int
	cpu                              time.Duration
}

func (s *state) String() string {
	return fmt.Sprintf("%d descriptors, %d goroutines, %d threads, %d sockets, %d KiB (%d its own, %d MiB live), %d files of %d bytes, %d segments, %v of CPU",
		s.descriptors, s.goroutines, s.threads, s.sockets, s.resident, s.anonymous, s.live, s.files, s.fileBytes, s.segments, s.cpu.Round(time.Millisecond))
}

// noMore says of what there is more than there was, or "". So many descriptors (of sockets to
// the name server, and what is opened when it is needed first) and goroutines of the runtime
// may have come.
func (s *state) noMore(was *state, may int) string {
	for _, of := range []struct {
		what         string
		is, was, may int
	}{
		{"descriptors", s.descriptors, was.descriptors, may},
		{"goroutines", s.goroutines, was.goroutines, may},
		{"sockets", s.sockets, was.sockets, may},
		{"threads", s.threads, was.threads, 16},
		{"files", s.files, was.files, 0},
		{"bytes in files", s.fileBytes, was.fileBytes, 4 << 10},
		{"segments", s.segments, soakSegments, 1},
	} {
		if of.is > of.was+of.may {
			return of.what
		}
	}
	return ""
}

func stateOf(t *testing.T, d *world.Daemon) state {
	t.Helper()
	s := state{descriptors: d.Descriptors(), goroutines: goroutines(t, d), threads: number(t, d, "Threads:"), resident: number(t, d, "VmRSS:"), anonymous: number(t, d, "RssAnon:"), cpu: cpu(t, d)}
	s.sockets, s.live = kernelSockets(t, d), liveMemory(d)
	err := filepath.WalkDir(d.Dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case world.SegmentName.MatchString(e.Name()):
			s.segments++
		case e.Type().IsRegular() && !strings.HasPrefix(path, d.Log.Dir):
			s.files++
			if info, err := e.Info(); err == nil {
				s.fileBytes += int(info.Size())
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return s
}

// number returns a number of /proc/PID/status.
func number(t *testing.T, d *world.Daemon, field string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n"+field)
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// kernelSockets counts all of the gateway's, those that only the kernel knows too, but for
// ports that wait for time to pass. (What it says of orphans is of the whole machine.)
func kernelSockets(t *testing.T, d *world.Daemon) (n int) {
	t.Helper()
	for _, name := range []string{"sockstat", "sockstat6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", d.Cmd.Process.Pid, name))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			for i := 1; i+1 < len(f); i += 2 {
				if f[i] == "inuse" {
					value, _ := strconv.Atoi(f[i+1])
					n += value
				}
			}
		}
	}
	return n
}

// cpu is the time that the process has used.
func cpu(t *testing.T, d *world.Daemon) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

var goroutineLine = regexp.MustCompile(`\bG[0-9]+: status=([0-9])`)

// goroutines counts those that live in the next whole report that the runtime makes of
// them (schedtrace).
func goroutines(t *testing.T, d *world.Daemon) (n int) {
	t.Helper()
	const begins, dead, unused = "SCHED ", "6", "0"
	from := len(d.Trace.String())
	var reports []string
	whole := func() bool {
		reports = strings.Split(d.Trace.String()[from:], begins)
		return len(reports) > 2
	}
	if !world.Eventually(world.Settling, whole) {
		t.Error("the runtime does not report goroutines")
		return 0
	}
	for _, match := range goroutineLine.FindAllStringSubmatch(reports[1], -1) {
		if status := match[1]; status != dead && status != unused {
			n++
		}
	}
	if n == 0 {
		t.Errorf("no goroutines are reported: %q", reports[1])
	}
	return n
}

var collectionLine = regexp.MustCompile(`[0-9]+->[0-9]+->([0-9]+) MB`)

// liveMemory is what the newest collection found, in MiB (gctrace).
func liveMemory(d *world.Daemon) (mebibytes int) {
	text := d.Trace.String()
	text = text[max(0, strings.LastIndex(text, "\ngc ")):]
	if match := collectionLine.FindStringSubmatch(text); match != nil {
		mebibytes, _ = strconv.Atoi(match[1])
	}
	return mebibytes
}

// A ledger reads a log as it is written, before its segments are removed, and knows
// the flows that have no end yet.
type ledger struct {
	dir  string
	read map[string]int64 // bytes of each segment
	next int64            // seq

	open     map[string]bool
	records  int
	segments int
	outcomes map[string]int
}

func (l *ledger) followUntil(t *testing.T, over <-chan struct{}) {
	for {
		l.follow(t)
		select {
		case <-time.After(200 * time.Millisecond):
		case <-over:
			return
		}
	}
}

// follow reads what has been added.
func (l *ledger) follow(t *testing.T) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(l.dir, "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(paths)
	for _, path := range paths {
		if err := l.followOne(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func (l *ledger) followOne(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if l.read[path] == 0 {
		l.segments++
	}
	if _, err := f.Seek(l.read[path], io.SeekStart); err != nil {
		return err
	}
	for lines := bufio.NewReader(f); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return nil // of what is being written
		}
		l.read[path] += int64(len(line))
		if err := l.take(line); err != nil {
			return fmt.Errorf("%w: %q", err, line)
		}
	}
}

func (l *ledger) take(line []byte) error {
	var r record.Record
	if err := json.Unmarshal(line, &r); err != nil {
		return err
	}
	if r.Seq != l.next {
		return fmt.Errorf("seq %d, want %d", r.Seq, l.next)
	}
	l.next++
	l.records++
	switch {
	case (r.Kind == record.KindOpen || r.Kind == record.KindRequest) && r.Decision.Action != "deny":
		l.open[r.Flow] = true
	case r.Kind == record.KindClose:
		if l.outcomes == nil {
			l.outcomes = map[string]int{}
		}
		l.outcomes[string(r.Outcome)]++
		delete(l.open, r.Flow)
	}
	return nil
}
