package certs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// TestMain is also the process that TestCrash ends: with CERTS_CRASH set it
// makes or replaces the authority in that folder and is done.
func TestMain(m *testing.M) {
	dir := os.Getenv("CERTS_CRASH")
	if dir == "" {
		os.Exit(m.Run())
	}
	runtime.LockOSThread() // strace counts the calls of each thread
	_, err := Rotate(dir)
	if errors.Is(err, fs.ErrNotExist) {
		_, err = Create(dir)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// A fault is what happens to the nth call of those whose names begin so.
type fault struct {
	what, call string
	n          int
}

// crash makes or replaces the authority in dir in a process that the fault
// befalls. It reports whether there was such a call.
func (f fault) crash(t *testing.T, dir string) bool {
	t.Helper()
	cmd := exec.Command("strace", "-f", "-qq", "-o", os.DevNull, "-e", "trace=/^"+f.call,
		"-e", fmt.Sprintf("inject=/^%s:%s:when=%d", f.call, f.what, f.n), os.Args[0])
	cmd.Env = append(os.Environ(), "CERTS_CRASH="+dir)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %s(the package strace has to be installed)", err, out)
	}
	return err != nil
}

// eachFault calls do with one fault after the other: every call that makes
// something last, as an error and as the end of the process. It goes on to the
// next kind of call when do reports that there was no such call.
func eachFault(do func(fault) bool) {
	for _, what := range []string{"signal=KILL", "error=EIO"} {
		for _, call := range []string{"fsync", "rename"} {
			for n := 1; do(fault{what, call, n}); n++ {
			}
		}
	}
}

// TestCrashOfRotate ends a rotation at each of its steps. What is there then
// is the old pair or the new one.
func TestCrashOfRotate(t *testing.T) {
	kept, replaced := 0, 0
	eachFault(func(f fault) bool {
		dir := t.TempDir()
		old := create(t, dir)
		if !f.crash(t, dir) {
			return false
		}
		now, err := Open(dir)
		switch {
		case err != nil:
			t.Errorf("after %v: %v", f, err)
		case same(old, now):
			kept++
		default:
			replaced++
		}
		if _, err := Rotate(dir); err != nil {
			t.Errorf("rotate after %v: %v", f, err)
		}
		return true
	})
	// The old certificate, the new one and the key are three files, each with
	// two syncs and a rename; then the new certificate gets its place.
	if kept+replaced != 2*(3*3+2) || kept < 10 || replaced < 4 {
		t.Errorf("%d steps before the new one counts, %d after it", kept, replaced)
	}
}

// TestCrashOfCreate ends a creation at each of its steps. Then there is none
// and one can be made, or there is one.
func TestCrashOfCreate(t *testing.T) {
	none, made := 0, 0
	eachFault(func(f fault) bool {
		dir := filepath.Join(t.TempDir(), "ca")
		if !f.crash(t, dir) {
			return false
		}
		_, err := Open(dir)
		switch {
		case err == nil:
			made++
		case errors.Is(err, fs.ErrNotExist):
			none++
			if made := create(t, dir); !same(made, open(t, dir)) {
				t.Errorf("after %v, what was created is not what is opened", f)
			}
		default:
			t.Errorf("after %v: %v", f, err)
		}
		return true
	})
	if none+made != 2*9 || none < 10 || made < 4 { // two files, and the folder's own
		t.Errorf("%d steps before the new one counts, %d after it", none, made)
	}
}
