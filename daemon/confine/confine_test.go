//go:build linux

package confine

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/egressd/egressd/internal/hint"
)

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
		if err := gainNothing(); err != nil && !errors.Is(err, syscall.ENOTSUP) { // a build with cgo
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

// TestAHintForTooFewSignals lets this process queue fewer than it takes.
func TestAHintForTooFewSignals(t *testing.T) {
	const pending = 11 // RLIMIT_SIGPENDING
	var before syscall.Rlimit
	if err := syscall.Getrlimit(pending, &before); err != nil {
		t.Fatal(err)
	}
	few := before
	few.Cur = 100
	if err := syscall.Setrlimit(pending, &few); err != nil {
		t.Fatal(err)
	}
	err := Privileges(io.Discard)
	if failed := syscall.Setrlimit(pending, &before); failed != nil {
		t.Fatal(failed)
	}
	wrong, ok := errors.AsType[*hint.Error](err)
	if !ok || wrong.Hint != "ulimit -i 128" {
		t.Errorf("%#v, want the hint to raise the limit", err)
	}
}
