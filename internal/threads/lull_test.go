package threads

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestLullIsOfAnotherProcess has a process in a user namespace of its own doze, where this one does.
func TestLullIsOfAnotherProcess(t *testing.T) {
	other := exec.Command("sleep", "60")
	other.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	if err := Awake(other.Start); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	path := "/proc/" + strconv.Itoa(other.Process.Pid) + "/timerslack_ns"
	slack := func() string {
		text, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, syscall.EPERM) {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}

	before := had.Swap(0)
	defer had.Store(before)
	own := slack()
	if own == strconv.Itoa(dozing) {
		t.Fatal("it dozes before it is told to")
	}
	Lull(other.Process.Pid)
	if got := slack(); got != own {
		t.Errorf("where nobody dozes it has a slack of %s ns, want %s", got, own)
	}
	had.Store(50_000)
	Lull(other.Process.Pid)
	want := strconv.Itoa(dozing)
	if own == "" {
		want = "" // a kernel that lets only privileged processes
	}
	if got := slack(); got != want {
		t.Errorf("it has a slack of %s ns, want %s", got, want)
	}
	if err := syscall.Kill(other.Process.Pid, 0); err != nil {
		t.Error("it has ended:", err)
	}
}
