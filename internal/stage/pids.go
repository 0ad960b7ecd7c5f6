package stage

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/ahead"
)

// divide makes the PID namespace of a jail and starts two processes in it: its init, and the
// inside, which becomes the program. The inside is a child of egressd's own process, which so
// learns how the program stopped and ended from the kernel. divide tells egressd its pid, is
// killed then, and does not return.
//
// If the kernel would refuse a second /proc, there is no such namespace, and this process goes
// on as the inside.
func divide(socket, life string) {
	control := controlSocket(socket)
	pipe, err := strconv.Atoi(life)
	if err != nil {
		os.Exit(exitSetup)
	}
	unix.CloseOnExec(pipe)
	if !mayMountProc(openMounts().all) {
		say(control, 0)
		unix.Close(pipe)
		run(socket)
	}
	pid, err := startInside(control, pipe)
	if errno, ok := err.(syscall.Errno); ok {
		pid = -int(errno)
	}
	say(control, pid)
	for {
		_ = unix.Pause()
	}
}

func say(control, pid int) {
	if _, err := unix.Write(control, []byte(strconv.Itoa(pid))); err != nil {
		os.Exit(exitSetup) // whoever wanted the jail is gone
	}
}

// startInside returns the pid, outside of the namespace, of the inside. This thread can start
// no further threads afterwards: clone(2) refuses them, since they would be in both namespaces.
func startInside(control, life int) (pid int, err error) {
	if err := unix.Unshare(unix.CLONE_NEWPID); err != nil {
		return 0, err
	}
	own := "/proc/self/exe"
	env := os.Environ()
	first := &syscall.ProcAttr{Env: env, Files: []uintptr{uintptr(life)}, Sys: &syscall.SysProcAttr{Setsid: true}} // so that the terminal sends it nothing
	if _, err := syscall.ForkExec(own, []string{os.Args[0], ahead.InitArgument}, first); err != nil {
		return 0, err
	}
	if _, err := unix.FcntlInt(uintptr(control), unix.F_SETFD, 0); err != nil {
		return 0, err
	}
	second := &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Cloneflags: unix.CLONE_PARENT}}
	return syscall.ForkExec(own, []string{os.Args[0], ahead.Argument, strconv.Itoa(control)}, second)
}

// runInit is the first process of the PID namespace. The kernel makes it the parent of processes
// that have lost theirs, and kills all others when it ends. It ends with egressd, by its pipe.
//
// It gives up what the program gives up. Each thread has to: so it does that first, and executes
// itself again.
func runInit() {
	if os.Getpid() != 1 {
		os.Exit(exitSetup)
	}
	if confined, _ := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); confined == 0 {
		inOrder(
			dropCapabilities,
			func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) },
			func() error { return FilterCalls(false) },
			func() error { return syscall.Exec("/proc/self/exe", os.Args, os.Environ()) },
		)
	}
	inOrder(
		func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) },
		closeInherited,
		func() error { return unix.Chdir("/") },
		ignoreChildren,
	)
	for {
		if _, err := unix.Read(0, make([]byte, 1)); err != unix.EINTR {
			os.Exit(0)
		}
	}
}

// inOrder ends this process where a step fails.
func inOrder(steps ...func() error) {
	for _, step := range steps {
		if step() != nil {
			os.Exit(exitSetup)
		}
	}
}

// closeInherited closes what this process was given but its standard input. What Go's runtime
// has opened is closed on execve, and stays.
func closeInherited() error {
	entries, err := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		fd, _ := strconv.Atoi(e.Name())
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); fd > 0 && err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
	return err
}

// ignoreChildren has the kernel reap this process's children.
func ignoreChildren() error {
	const setSize = 8
	ignored := struct{ handler, flags, restorer, mask uintptr }{handler: 1} // SIG_IGN
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), uintptr(unsafe.Pointer(&ignored)), 0, setSize, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// emptyInProc are folders that are there to be mounted on, and always empty.
var emptyInProc = [...]string{"/proc/sys/fs/binfmt_misc", "/proc/fs/nfsd", "/proc/xen", "/proc/openprom"}

// mayMountProc reports whether a user namespace with these mounts may mount a /proc. The kernel
// refuses that where a part of the one outside is hidden, as in most containers, or all of it is
// read-only (mount_too_revealing of fs/namespace.c).
func mayMountProc(mounts []mounted) bool {
	found := false
	for _, m := range mounts {
		switch {
		case m.point == "/proc":
			found = m.kind == "proc" && m.root == "/" && !m.readOnly
		case strings.HasPrefix(m.point, "/proc/") && !slices.Contains(emptyInProc[:], m.point):
			return false
		}
	}
	return found
}

// ownProc mounts a /proc that shows the processes of the jail alone, where it has a PID
// namespace: nobody in there is the parent of this process.
func ownProc() error {
	if os.Getppid() != 0 {
		return nil
	}
	return os.NewSyscallError("mount", unix.Mount("proc", "/proc", "proc", bare, ""))
}
