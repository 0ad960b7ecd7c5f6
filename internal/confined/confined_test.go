package confined

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// insideVariable has this test binary confine itself, and say what it still can do.
const insideVariable = "CONFINED_TEST_INSIDE"

func TestMain(m *testing.M) {
	if os.Getenv(insideVariable) == "" {
		os.Exit(m.Run())
	}
	if err := inside(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// TestCallsAreRefused: what is refused is refused on every thread and to programs that
// are started, and what a daemon does works. Of capabilities, which a test binary with cgo cannot
// drop, a test in e2e looks at the command.
func TestCallsAreRefused(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func inside() error {
	if err := unix.Unshare(0); err != nil {
		return fmt.Errorf("before: %w", err)
	}
	if err := FilterCalls(); err != nil {
		return fmt.Errorf("filter: %w", err)
	}
	answers := make(chan error)
	for range 4 { // threads that were there, and such as are made now
		go func() { answers <- attempts() }()
	}
	for range 4 {
		if err := <-answers; err != nil {
			return err
		}
	}
	return daily()
}

// attempts makes calls that have to be refused by the filter: by capabilities alone the
// answer of root would be another, or none.
func attempts() error {
	for name, n := range map[string]uintptr{
		"unshare": unix.SYS_UNSHARE, "setns": unix.SYS_SETNS, "mount": unix.SYS_MOUNT, "ptrace": unix.SYS_PTRACE, "bpf": unix.SYS_BPF, "keyctl": unix.SYS_KEYCTL,
		"add_key": unix.SYS_ADD_KEY, "perf_event_open": unix.SYS_PERF_EVENT_OPEN, "userfaultfd": unix.SYS_USERFAULTFD, "io_uring_setup": unix.SYS_IO_URING_SETUP,
		"kexec_load": unix.SYS_KEXEC_LOAD, "finit_module": unix.SYS_FINIT_MODULE, "pidfd_getfd": unix.SYS_PIDFD_GETFD, "clone3": clone3, "chroot": unix.SYS_CHROOT,
		"open_tree": unix.SYS_OPEN_TREE, "process_vm_readv": unix.SYS_PROCESS_VM_READV, "open_by_handle_at": unix.SYS_OPEN_BY_HANDLE_AT,
	} {
		if _, _, errno := unix.Syscall6(n, 0, 0, 0, 0, 0, 0); errno != unix.ENOSYS {
			return fmt.Errorf("%s: %d", name, errno)
		}
	}
	if _, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.CLONE_NEWUSER|unix.SIGCHLD), 0, 0, 0, 0, 0); errno != unix.EPERM {
		return fmt.Errorf("clone into a namespace: %d", errno)
	}
	return nil
}

// daily does what daemons do.
func daily() error {
	threads, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(threads) < 2 {
		return fmt.Errorf("%q, %w", threads, err)
	}
	for _, path := range threads {
		status, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(status), "\nNoNewPrivs:\t1\nSeccomp:\t2\n") {
			return fmt.Errorf("%s, %w", status, err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	out, err := exec.Command("/bin/sh", "-c", "(echo piped | cat); unshare -U true 2>/dev/null && echo unshared").Output()
	if err != nil && string(out) == "piped\n" {
		return nil
	}
	return fmt.Errorf("a program said %q, %w", out, err)
}
