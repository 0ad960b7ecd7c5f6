package ahead

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// TestOnlyRunIsBegun has command lines that are not those of run start nothing.
func TestOnlyRunIsBegun(t *testing.T) {
	for _, args := range [][]string{nil, {"egressd"}, {"run"}, {"egressd", "serve"}, {"egressd", "help", "run"}, {"egressd", "check", "run"}, {"egressd", Argument, "3"}, {"egressd", "running"}} {
		if begin(args) != nil {
			t.Errorf("%q was begun", args)
		}
	}
	if begun != nil {
		t.Error("this test was begun")
	}
}

// TestEveryThreadGainsNothing asks the kernel of each thread, one of which is in a call.
func TestEveryThreadGainsNothing(t *testing.T) {
	waits, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer write.Close()
	go func() {
		runtime.LockOSThread()
		_, _ = syscall.Read(int(waits.Fd()), make([]byte, 1))
	}()
	for range 2 { // the second time it is done already
		if err := GainNothing(); err != nil && !errors.Is(err, syscall.ENOTSUP) { // a build with cgo
			t.Fatal(err)
		} else if err != nil {
			return
		}
	}
	all, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(all) < 2 {
		t.Fatalf("%d threads: %v", len(all), err)
	}
	for _, path := range all {
		if text, err := os.ReadFile(path); err == nil && !strings.Contains(string(text), "\nNoNewPrivs:\t1\n") {
			t.Errorf("a thread can gain privileges: %s", path)
		}
	}
}
