package jailinit

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/lab"
)

// TestMountsThatComeAfterTheTableWasRead has one come, in a namespace of this test's own.
func TestMountsThatComeAfterTheTableWasRead(t *testing.T) {
	if !lab.AsRoot(t) {
		return
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	type table struct {
		text          []byte
		before, after []mounted
		err           error
	}
	came := make(chan table)
	go func() {
		runtime.LockOSThread() // and it ends with the thread
		var is table
		defer func() { came <- is }()
		if is.err = unix.Unshare(unix.CLONE_NEWNS); is.err != nil {
			return
		}
		if is.err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); is.err != nil {
			return
		}
		if is.text, is.err = os.ReadFile("/proc/thread-self/mountinfo"); is.err != nil {
			return
		}
		read := openMounts()
		is.before = slices.Clone(read.all)
		if is.err = unix.Mount("tmpfs", dir, "tmpfs", 0, ""); is.err == nil {
			is.after, is.err = read.read()
		}
	}()
	is := <-came
	if is.err != nil {
		t.Fatal(is.err)
	}
	here := func(m mounted) bool { return m.point == dir }
	if all := readMounts(string(is.text)); len(is.before) != len(all) || slices.ContainsFunc(is.before, here) {
		t.Errorf("before there were %d mounts, want %d: %v", len(is.before), len(all), is.before)
	}
	if len(is.after) != len(is.before)+1 || !slices.ContainsFunc(is.after, here) {
		t.Errorf("then there are %d mounts, want %d with %s", len(is.after), len(is.before)+1, dir)
	}
}
