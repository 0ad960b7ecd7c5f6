package audit

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/egressd/egressd/audit/internal/format"
)

// inChild runs the calling test once more, in a process of its own, which may
// take limits and mounts upon itself. It returns true there.
func inChild(t *testing.T, as *syscall.SysProcAttr) bool {
	t.Helper()
	if os.Getenv("AUDIT_TEST_CHILD") != "" {
		return true
	}
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), "AUDIT_TEST_CHILD=yes")
	child.SysProcAttr = as
	out, err := child.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("child: %v\n%s", err, out)
	}
	return false
}

func TestAShortWriteTearsOneLine(t *testing.T) {
	if !inChild(t, nil) {
		return
	}
	dir := t.TempDir()
	signal.Ignore(syscall.SIGXFSZ)
	l := create(t, dir, Options{unsigned: true})
	first := appendTo(t, l, named("first"))
	wait(t, l, first)
	size := l.end.Offset
	limitFileSize(t, uint64(2*size+size/2)) // the second fits, the third does not
	seqs, errs := together(l, named("other"), named("third"), named("extra"))
	if errs[0] != nil || seqs[0] != 1 {
		t.Errorf("the record that was written whole: %d, %v", seqs[0], errs[0])
	}
	for _, err := range errs[1:] {
		if !errors.Is(err, ErrUnavailable) || !errors.Is(err, syscall.EFBIG) {
			t.Errorf("a record that was not written: %v", err)
		}
	}
	if err := answered(l, 1); !errors.Is(err, ErrUnavailable) {
		t.Errorf("durable in a segment that failed: %v", err)
	}
	if seq := appendTo(t, l, named("after")); seq != 2 {
		t.Errorf("goes on with %d, want 2", seq)
	}
	wait(t, l, 2)
	got := l.Recovered()
	if len(got) != 1 || got[0].Segment != "00000001.log" || got[0].Offset != 2*size || got[0].Bytes != size/2 || got[0].Moved {
		t.Errorf("recovered %+v, want %d bytes at %d", got, size/2, 2*size)
	}
	closeLog(t, l)
	if info, err := os.Stat(format.SegmentPath(dir, 1)); err != nil || info.Size() != 2*size+size/2 {
		t.Errorf("the torn part does not stay: %v, %v", info.Size(), err)
	}
	if got := fmt.Sprint(names(t, dir)); got != "[first other after]" {
		t.Errorf("the log holds %s", got)
	}
	if l := open(t, dir, Options{unsigned: true}); appendTo(t, l, named("next")) != 3 || l.Recovered() != nil {
		t.Error("a segment that is followed by another is recovered once more")
	}
}

// limitFileSize lets no file of this process grow beyond n bytes until the
// test ends.
func limitFileSize(t *testing.T, n uint64) {
	t.Helper()
	var before syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before)
	limit := before
	limit.Cur = n
	if err = errors.Join(err, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before) })
}

func TestAFullDiskAndRoomAgain(t *testing.T) {
	if !inChild(t, &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}) {
		return
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 16<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	l := create(t, dir, Options{})
	var accepted []string
	try := func() error {
		name := fmt.Sprint(len(accepted), strings.Repeat("x", 700))
		_, err := l.Append([]byte(named(name)))
		if err == nil {
			accepted = append(accepted, name)
		}
		return err
	}
	var err error
	for err == nil {
		err = try()
	}
	for range 20 {
		if !errors.Is(err, ErrUnavailable) || !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("append on a full disk: %v", err)
		}
		if l.Reopen() == nil {
			err = try()
		}
	}
	if paths, err := format.Segments(dir); err != nil || len(paths) > 2 {
		t.Errorf("%d segments, %v: attempts leave some behind", len(paths), err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	if err := try(); err != nil {
		t.Fatal(err)
	}
	wait(t, l, int64(len(accepted)-1))
	closeLog(t, l)
	if got := names(t, dir); fmt.Sprint(got) != fmt.Sprint(accepted) {
		t.Errorf("the log holds %d records, %d were accepted", len(got), len(accepted))
	}
	closeLog(t, open(t, dir, Options{}))
}

// A killed process has reported only what is in the log.
func TestKilledUnderLoad(t *testing.T) {
	if dir := os.Getenv("AUDIT_TEST_CHILD"); dir != "" {
		appendUntilKilled(t, dir)
	}
	dir := t.TempDir()
	reported := make(map[int64]string)
	for range 15 {
		killOne(t, dir, reported)
		l := open(t, dir, Options{})
		for _, torn := range l.Recovered() {
			appendTo(t, l, named(fmt.Sprint("torn ", torn.Bytes)))
		}
		closeLog(t, l)
		got := names(t, dir)
		for seq, name := range reported {
			if seq >= int64(len(got)) || got[seq] != name {
				t.Fatalf("record %d was reported as %q, and is not in the log of %d", seq, name, len(got))
			}
		}
	}
	if len(reported) < 15 {
		t.Errorf("only %d records were reported", len(reported))
	}
}

// killOne runs a child until it has reported some records, kills it, and
// collects what it has reported.
func killOne(t *testing.T, dir string, reported map[int64]string) {
	t.Helper()
	killChild(t, "TestKilledUnderLoad", 200, reported, "AUDIT_TEST_CHILD="+dir)
}

// killChild runs one test in a process of its own and kills that after it has reported
// up to most records.
func killChild(t *testing.T, test string, most int, reported map[int64]string, env ...string) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^"+test+"$")
	child.Env = append(os.Environ(), env...)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	enough := 1 + rand.IntN(most)
	for lines := bufio.NewScanner(out); lines.Scan(); enough-- {
		var seq int64
		var name string
		if _, err := fmt.Sscanf(lines.Text(), "reported %d %s", &seq, &name); err != nil {
			t.Errorf("child: %s", lines.Text())
		}
		reported[seq] = name
		if enough == 0 {
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	var killed *exec.ExitError
	if err := child.Wait(); !errors.As(err, &killed) || killed.Exited() {
		t.Fatalf("child: %v", err)
	}
}

func appendUntilKilled(t *testing.T, dir string) {
	o := Options{SegmentBytes: 20 << 10}
	if n, err := strconv.ParseInt(os.Getenv("AUDIT_TEST_SEGMENT"), 10, 64); err == nil {
		o.SegmentBytes = n
	}
	l, err := Create(dir, o)
	if errors.Is(err, os.ErrExist) {
		l, err = Open(dir, o)
	}
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for i := 0; ; i++ {
				name := fmt.Sprintf("%d-%d-%d-%s", os.Getpid(), w, i, strings.Repeat("x", rand.IntN(300)))
				seq, err := l.Append([]byte(named(name)))
				if err == nil {
					err = l.Wait(t.Context(), seq)
				}
				if err != nil {
					fmt.Println(err)
					os.Exit(1)
				}
				fmt.Printf("reported %d %s\n", seq, name)
			}
		})
	}
	all.Wait()
}
