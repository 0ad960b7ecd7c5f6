package operator

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/egressd/egressd/e2e/world"
)

// plainArgument has this test binary give up every capability, so that it is
// like any program of its user, and do what stands behind it: "exec" runs a
// command, "spy" tries to look into a process.
const plainArgument = "as-a-plain-user"

// TestKeepsItsUsersProgramsOut runs egressd without a capability, and beside
// it a program of the same user that would like to read its tokens.
func TestKeepsItsUsersProgramsOut(t *testing.T) {
	world.Covers(t, "SP-11")
	d := world.NewDaemon(t, world.PolicyText(t, "P-auth"))
	d.Run(t, plain("exec", world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	pid := d.Cmd.Process.Pid
	if saw := spy(t, pid); saw != "" {
		t.Errorf("a program of the same user could look into egressd: %s", saw)
	}
	if saw := spy(t, bystander(t)); !strings.Contains(saw, "environ") || !strings.Contains(saw, "fd/0") {
		t.Errorf("the spy saw only %q of a process that does not hide", saw)
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) < 2 {
		t.Fatalf("threads %q, %v", threads, err)
	}
	for _, status := range threads {
		expectLines(t, status, "NoNewPrivs: 1", "Seccomp: 2", "CapEff: 0000000000000000", "CapPrm: 0000000000000000", "Umask: 0077")
	}
	expectLines(t, fmt.Sprintf("/proc/%d/limits", pid), "Max core file size 0 0 bytes")
	if !strings.Contains(d.Output.String(), "egressd: warning: running as root") {
		t.Error("root was not told that it need not be root")
	}
}

// TestKeepsLittleOfRoot: a daemon that root starts keeps, on all threads, what concerns
// networks and files alone, and no program that it starts has more.
func TestKeepsLittleOfRoot(t *testing.T) {
	world.Covers(t, "SP-11")
	d := world.Start(t, world.PolicyText(t, "P0"))
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", d.Cmd.Process.Pid))
	if err != nil || len(threads) < 2 {
		t.Fatalf("threads %q, %v", threads, err)
	}
	const kept = "000000000008341f" // CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, NET_BIND_SERVICE, NET_ADMIN, NET_RAW, SYS_PTRACE
	for _, status := range threads {
		expectLines(t, status, "NoNewPrivs: 1", "Seccomp: 2", "CapEff: "+kept, "CapPrm: "+kept, "CapBnd: "+kept)
	}
}

// expectLines looks for lines in a file of /proc, without regard to how its
// columns are set.
func expectLines(t *testing.T, path string, lines ...string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	is := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		is[strings.Join(strings.Fields(line), " ")] = true
	}
	for _, line := range lines {
		if !is[line] {
			t.Errorf("%s does not say %q:\n%s", path, line, text)
		}
	}
}

// bystander starts a process that hides nothing.
func bystander(t *testing.T) (pid int) {
	t.Helper()
	cmd := plain("exec", "/bin/sleep", "60")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	stdout.Read(make([]byte, 1)) // it has given up what it had
	return cmd.Process.Pid
}

// spy returns what a program without capabilities can open of a process.
func spy(t *testing.T, pid int) string {
	t.Helper()
	saw, err := plain("spy", fmt.Sprint(pid)).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(saw)
}

// plain returns the command for what plainUser does.
func plain(what, name string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", append([]string{plainArgument, what, name}, args...)...)
	cmd.Args[0] = os.Args[0]
	return cmd
}

func plainUser(args []string) int {
	what, name, args := args[0], args[1], args[2:]
	runtime.LockOSThread() // capabilities belong to a thread
	err := dropCapabilities()
	if err == nil && what == "exec" {
		fmt.Print(".") // tells the bystander's parent that it has come so far
		err = syscall.Exec(name, append([]string{name}, args...), os.Environ())
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "plain user: %v\n", err)
		return 1
	}
	lookInto("/proc/" + name)
	return 0
}

// dropCapabilities leaves the thread, and what it executes, without any, also
// where its user is root.
func dropCapabilities() error {
	const dropFromBounds, version = 24, 0x20080522 // PR_CAPBSET_DROP, _LINUX_CAPABILITY_VERSION_3
	for c := uintptr(0); ; c++ {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, dropFromBounds, c, 0); errno == syscall.EINVAL {
			break // the kernel knows no more
		} else if errno != 0 && os.Geteuid() == 0 {
			return errno
		}
	}
	header, none := [2]uint32{version}, [6]uint32{}
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none)), 0); errno != 0 {
		return errno
	}
	return nil
}

// lookInto prints the names of what it can open of a process.
func lookInto(dir string) {
	for _, name := range []string{"environ", "mem", "maps", "auxv"} {
		if f, err := os.Open(filepath.Join(dir, name)); err == nil {
			fmt.Println(name)
			f.Close()
		}
	}
	for _, name := range []string{"fd/0", "cwd"} {
		if _, err := os.Readlink(filepath.Join(dir, name)); err == nil {
			fmt.Println(name)
		}
	}
}
