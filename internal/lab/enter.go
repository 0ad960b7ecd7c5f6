// Package lab makes a small world of network namespaces for tests: a sandbox,
// a gateway and an Internet in which every address exists.
//
//	sandbox 10.99.0.1, fd99::1 ─ 10.99.0.2, fd99::2 gateway 10.98.0.1, fd98::1 ─ 10.98.0.2, fd98::2 internet
//
// The gateway routes everything that is not its own to the internet, also
// private, metadata and multicast space, and no address of the machine is
// reachable from any of the three. Nothing leaves the machine, whatever the
// program under test does; what it tries is seen by a [Wire].
//
// The package needs Linux with unprivileged user namespaces or root, and the
// commands ip and nft. A test binary calls [Enter] first thing in TestMain:
//
//	if code, inside := lab.Enter(); !inside {
//		os.Exit(code)
//	}
//	os.Exit(m.Run())
package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

// stageVariable tells a re-executed test binary how far it has come.
const stageVariable = "EGRESSD_LAB_STAGE"

const (
	stageRoot   = "root"
	stageProbe  = "probe"
	stageInside = "inside"
)

// Enter runs this program again in namespaces of its own (user, mount, PID and
// network; without the user namespace where only root may make the others) and
// returns its exit status with inside false. In that second run it returns at
// once with inside true: the process is then root over an empty network, and
// everything that it starts ends with it.
//
// Where no kind of namespace can be made, Enter says why on standard error and
// returns 1.
func Enter() (code int, inside bool) {
	switch os.Getenv(stageVariable) {
	case stageInside:
		return settle(os.Unsetenv(stageVariable))
	case stageProbe:
		code, _ = settle(syscall.Unshare(syscall.CLONE_NEWNET))
		return code, false
	}
	// Pdeathsig is sent when the thread that started the child ends.
	runtime.LockOSThread()
	if os.Getenv(stageVariable) == stageRoot {
		if err := ownRoot(os.Getenv(rootVariable)); err != nil {
			fmt.Fprintf(os.Stderr, "lab: %v\n", err)
			return 1, false
		}
	} else if code, ran := asRoot(); ran {
		return code, false
	}
	flags, err := usableFlags()
	if err != nil {
		fmt.Fprintf(os.Stderr, "lab: no namespaces to test in: %v\n", err)
		return 1, false
	}
	return exitStatus(again(stageInside, flags, os.Args[1:]).Run()), false
}

// settle prepares the namespaces from within.
func settle(err error) (code int, inside bool) {
	if err == nil {
		err = privateMounts()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "lab: %v\n", err)
		return 1, false
	}
	return 0, true
}

// privateMounts keeps mounts made from here on to this process, gives it shared memory of its own, since squid would find
// that of another squid, and shows the processes of its own PID namespace in /proc.
func privateMounts() error {
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("tmpfs", "/dev/shm", "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "mode=1777"); err != nil && err != syscall.ENOENT {
		return fmt.Errorf("mount /dev/shm: %w", err)
	}
	if os.Getpid() != 1 {
		return nil
	}
	const flags = syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC
	if err := syscall.Mount("proc", "/proc", "proc", flags, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

// usableFlags returns the first set of clone flags with which a probe works.
func usableFlags() (uintptr, error) {
	const (
		needed = syscall.CLONE_NEWNET | syscall.CLONE_NEWNS
		user   = syscall.CLONE_NEWUSER
		pid    = syscall.CLONE_NEWPID
	)
	var failures []error
	for _, flags := range []uintptr{user | needed | pid, needed | pid, user | needed, needed} {
		out, err := again(stageProbe, flags, nil).CombinedOutput()
		if err == nil {
			return flags, nil
		}
		failures = append(failures, fmt.Errorf("with flags %#x: %w: %s", flags, err, out))
	}
	return 0, errors.Join(failures...)
}

// again returns the command that runs this program at the given stage.
func again(stage string, flags uintptr, args []string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), stageVariable+"="+stage)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	if stage == stageInside {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	}
	if flags&syscall.CLONE_NEWUSER != 0 {
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = numbered("/proc/self/uid_map", os.Getuid()), numbered("/proc/self/gid_map", os.Getgid())
		cmd.SysProcAttr.GidMappingsEnableSetgroups = os.Getuid() == 0 // users of the lab can have several groups
	}
	return cmd
}

// numbered returns the users (or groups) of the lab: those below 65536 that have a number here, if this process is root. Another
// process has only itself.
func numbered(file string, self int) []syscall.SysProcIDMap {
	const ordinary = 1 << 16
	text, err := os.ReadFile(file)
	if err != nil || os.Getuid() != 0 {
		return []syscall.SysProcIDMap{{HostID: self, Size: 1}}
	}
	var maps []syscall.SysProcIDMap
	for line := range strings.Lines(string(text)) {
		var inside, outside, size int
		if _, err := fmt.Sscan(line, &inside, &outside, &size); err == nil && inside < ordinary {
			maps = append(maps, syscall.SysProcIDMap{ContainerID: inside, HostID: inside, Size: min(size, ordinary-inside)})
		}
	}
	return maps
}

func exitStatus(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode()
	default:
		fmt.Fprintf(os.Stderr, "lab: %v\n", err)
		return 1
	}
}
