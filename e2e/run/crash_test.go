package run

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/e2e/world"
)

// TestAProcessOfAStartThatEndsEndsTheStart kills each process of a start: at many of its system calls, and at the next one after
// another process has begun, which may wait for it. The start ends by itself, says why, and leaves nothing behind.
func TestAProcessOfAStartThatEndsEndsTheStart(t *testing.T) {
	d, config, _ := indexed(t)
	const most = 8 // kills of each process, at equal distances
	kinds := []string{"divide", "reap", "setup", "run"}
	for _, kind := range kinds {
		whole := traceStart(t, d, config, crash{kind, "", -1})
		kills := min(most, whole.stops/2)
		if kills == 0 || whole.status.ExitStatus() != 0 {
			t.Fatalf("%s: it stopped %d times; %#x: %s", kind, whole.stops, whole.status, whole.said)
		}
		var all []crash
		for i := range kills {
			all = append(all, crash{kind, "", whole.stops * (2*i + 1) / (2 * kills)})
		}
		for _, other := range kinds {
			if other != kind {
				all = append(all, crash{kind, other, 1})
			}
		}
		refused := 0
		for _, c := range all {
			got := traceStart(t, d, config, c)
			says := strings.Contains(got.said, "egressd: error: ")
			killed := got.status.Signal() == syscall.SIGKILL
			switch {
			case got.hung:
				t.Errorf("%+v of %d: the start did not end", c, whole.stops)
			case kind == "run" && killed && got.stops >= c.at:
			case kind != "run" && got.status.ExitStatus() == 125 && says:
				refused++
			case kind == "reap" && got.began && killed && says:
			case kind == "setup" && killed: // it was told to become the program, and run ends as its program does
			case got.status != 0: // it is, where nobody needed the process any more
				t.Errorf("%+v of %d: %#x: %s", c, whole.stops, got.status, got.said)
			}
			world.WaitFor(t, "the end of all that was begun", func() bool { return len(markedProcesses(t, d)) == 0 })
		}
		if kind != "run" && refused < kills/4 {
			t.Errorf("%s: of %d starts, %d were refused", kind, len(all), refused)
		}
	}
	if mounts := readAll(t, "/proc/self/mountinfo"); strings.Contains(mounts, d.Dir) {
		t.Errorf("mounts are left: %s", mounts)
	}
}

// A crash says which process is killed: that of a kind, at one of its stops, which count from the beginning of another process.
// Processes of the jail have their second argument for a kind. A negative number kills none.
type crash struct {
	kind, after string
	at          int
}

// A tracedStart is what a traced start came to.
type tracedStart struct {
	stops  int  // of the process in question
	began  bool // the program may have
	hung   bool // it had to be killed
	status syscall.WaitStatus
	said   string
}

// traceStart runs a program with a crash.
func traceStart(t *testing.T, d *world.Daemon, config string, c crash) (got tracedStart) {
	t.Helper()
	said, err := os.Create(filepath.Join(d.Dir, "said"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // by which the kernel knows who traces; it lets go of all processes when this thread ends
		pid, err := syscall.ForkExec(world.Egressd.Path(), []string{"egressd", "run", "-q", "--config", config, "--", "true"}, &syscall.ProcAttr{
			Env: markedEnv(d), Files: []uintptr{null.Fd(), said.Fd(), said.Fd()}, Sys: &syscall.SysProcAttr{Ptrace: true},
		})
		if err == nil {
			late := time.AfterFunc(20*time.Second, func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
			err = got.trace(pid, c)
			got.hung = !late.Stop()
		}
		ended <- err
	}()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	got.said = readAll(t, said.Name())
	return got
}

// trace follows the threads of a process, and those of all that it starts, until it ends.
func (got *tracedStart) trace(first int, c crash) error {
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC
	const systemCall = syscall.SIGTRAP | 0x80
	kinds, known, begun := map[int]string{first: "run"}, map[int]bool{}, map[string]bool{"": true, "run": true}
	for {
		var status syscall.WaitStatus
		thread, err := syscall.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return err
		case status.Stopped():
		case thread == first:
			got.status = status
			return nil
		default:
			delete(known, thread)
			continue
		}
		signal := status.StopSignal()
		switch {
		case !known[thread]:
			known[thread] = true
			if process := processOf(thread); kindOf(process) == "divide" && kinds[process] == "" {
				kinds[process] = "reap" // a fork of the divider, unless it executes something
				begun["reap"] = true
			}
			if thread == first {
				if err := syscall.PtraceSetOptions(first, options); err != nil {
					return err
				}
			}
			if signal == syscall.SIGSTOP || signal == syscall.SIGTRAP {
				signal = 0
			}
		case signal == systemCall:
			signal = 0
		case signal == syscall.SIGTRAP: // a process or a thread began, or another program
			signal = 0
			if status.TrapCause() == unix.PTRACE_EVENT_EXEC {
				got.began = got.began || kinds[thread] == "setup"
				kinds[thread] = kindOf(thread)
				begun[kinds[thread]] = true
			}
		}
		if process := processOf(thread); kinds[process] == c.kind && begun[c.after] {
			if got.stops++; got.stops == c.at {
				_ = syscall.Kill(process, syscall.SIGKILL)
			}
		}
		_ = syscall.PtraceSyscall(thread, int(signal)) // one that was killed is not stopped
	}
}

// kindOf returns which process of the jail one is, or "".
func kindOf(pid int) string {
	text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if args := bytes.Split(text, []byte{0}); len(args) > 2 && string(args[1]) == "jail-init" {
		return string(args[2])
	}
	return ""
}

// processOf returns the process of a thread.
func processOf(thread int) int {
	text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(thread), "status"))
	_, rest, _ := bytes.Cut(text, []byte("\nTgid:\t"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	process, _ := strconv.Atoi(string(line))
	return process
}
