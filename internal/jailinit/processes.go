package jailinit

import (
	"bytes"
	"errors"
	"os"
	slash "path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// divide makes the PID namespace of a jail and starts two processes in it: the reaper, and the
// jail init, which becomes the program. Jail init is a child of egressd's own process, so the kernel
// tells egressd how the program stopped and ended. divide tells egressd its pid and that of the reaper, by a pipe that no
// other process writes to: egressd sees also by its end that this process has ended.
//
// If the kernel would refuse a second /proc, there is no such namespace, and this process goes
// on as jail init.
func divide(control, file, life, words int) {
	if !OwnProcesses() {
		// The kernel is to kill the program with egressd. The parent death signal that egressd
		// set holds for the first thread, and execve keeps the signal of the thread that calls it.
		if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
			os.Exit(exitSetup)
		}
		say(words, 0, 0)
		unix.Close(words)
		unix.Close(life)
		setUp(control, file, noReaper)
	}
	pid, reaper, err := startJailInit(control, file, life)
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		pid = -int(errno)
	}
	say(words, pid, reaper)
	os.Exit(0)
}

func say(words, pid, reaper int) {
	if _, err := unix.Write(words, []byte(strconv.Itoa(pid)+" "+strconv.Itoa(reaper)+"\n")); err != nil {
		os.Exit(exitSetup) // whoever wanted the jail is gone
	}
}

// startJailInit starts the reaper and then jail init, and returns the pids of both outside of the namespace.
func startJailInit(control, file, life int) (pid, reaper int, err error) {
	var ready [2]int
	if err := unix.Pipe2(ready[:], unix.O_CLOEXEC); err != nil {
		return 0, 0, err
	}
	reaper, namespace, err := startReaper(life, ready[1])
	if err != nil {
		return 0, 0, err
	}
	unix.Close(ready[1])
	if err := unix.Setns(namespace, unix.CLONE_NEWPID); err != nil {
		return 0, 0, err
	}
	argv := []string{os.Args[0], Argument, jailInit}
	for _, fd := range []int{control, file, ready[0]} {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return 0, 0, err
		}
		argv = append(argv, strconv.Itoa(fd))
	}
	pid, err = syscall.ForkExec(self, argv, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Cloneflags: unix.CLONE_PARENT}})
	return pid, reaper, err
}

const self = "/proc/self/exe"

// startReaper makes a PID namespace, starts the reaper in it, and returns its pid and a descriptor of the
// namespace. A thread of its own first gives up all that the program gives up, so the reaper
// never has any privilege. The thread ends with its goroutine.
func startReaper(life, ready int) (pid, namespace int, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		for _, step := range []func() error{
			func() error { return unix.Unshare(unix.CLONE_NEWPID) },
			func() error { return dropCapabilities([2]unix.CapUserData{}) },
			func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) },
			func() error { return FilterCalls(false) },
		} {
			if err = step(); err != nil {
				return
			}
		}
		if pid, err = forkReaper(life, ready); err == nil {
			namespace, err = unix.Open("/proc/thread-self/ns/pid_for_children", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
	}()
	<-done
	return pid, namespace, err
}

// IsInside reports whether this process seems to be in a jail: the first process is a reaper, or the name server is that of a
// jail. It is for messages.
func IsInside() bool {
	first, _ := os.ReadFile("/proc/1/cmdline")
	servers, _ := os.ReadFile(ResolvConf)
	return bytes.Contains(first, []byte("\x00"+Argument+"\x00"+Divider+"\x00")) || bytes.HasPrefix(servers, []byte(resolvConfLead))
}

// emptyInProc are folders that are there to be mounted on, and always empty.
var emptyInProc = [...]string{"/proc/sys/fs/binfmt_misc", "/proc/fs/nfsd", "/proc/xen", "/proc/openprom"}

// OwnProcesses reports whether a jail may have a PID namespace, and a /proc that shows its processes alone.
func OwnProcesses() bool {
	t := openMounts()
	defer unix.Close(t.fd)
	return mayMountProc(t.all)
}

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

// Of linux/landlock.h.
const (
	landlockVersion     = 1 << 0 // LANDLOCK_CREATE_RULESET_VERSION
	landlockScopeSignal = 1 << 1 // LANDLOCK_SCOPE_SIGNAL
	landlockScopeSince  = 6      // the version of Landlock that has it: Linux 6.12
)

// scopeSignals keeps the program from sending signals to processes outside of
// its jail, egressd first among them. A kernel that cannot do so leaves that
// open: egressd's end is the end of the program's network, too.
//
// It handles no files: Landlock would forbid nested sandboxes to mount anything.
func scopeSignals() error {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, landlockVersion)
	if errno != 0 || version < landlockScopeSince {
		return nil
	}
	rules := struct{ files, network, scoped uint64 }{scoped: landlockScopeSignal}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&rules)), unsafe.Sizeof(rules), 0)
	if errno != 0 {
		return errno
	}
	_, _, errno = unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0)
	if errno != 0 {
		return errors.Join(errno, unix.Close(int(fd)))
	}
	return unix.Close(int(fd))
}

// Find looks up the program in the PATH of its own environment, like a shell.
func Find(c Program) (string, error) {
	name := c.Argv[0]
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	found := error(&ExecError{Name: name, Problem: "there is no such program in PATH", Missing: true})
	for _, dir := range foldersIn(variableOf(c.Env, "PATH")) {
		if dir == "" {
			dir = "."
		}
		path := slash.Join(dir, name)
		if _, err := os.Stat(path); err != nil {
			continue // also a folder of PATH that this user cannot enter
		}
		var problem *ExecError
		switch err := executable(path); {
		case err == nil:
			return path, nil
		case errors.As(err, &problem) && !problem.Missing:
			found = err
		}
	}
	return "", found
}

// foldersIn splits a list like PATH. An empty one has none.
func foldersIn(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ":")
}

// executable returns nil where path can be executed.
func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return &ExecError{Name: path, Problem: "there is no such file", Missing: true}
	case err != nil:
		return &ExecError{Name: path, Problem: err.Error()}
	case info.IsDir():
		return &ExecError{Name: path, Problem: "it is a folder"}
	case unix.Access(path, unix.X_OK) != nil:
		return &ExecError{Name: path, Problem: "it may not be executed"}
	}
	return nil
}

// isScript reports whether a file that the kernel cannot execute is text, which execvp(3) and shells hand to /bin/sh.
func isScript(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 256)
	n, _ := f.Read(head) // an empty file is an empty script
	return bytes.IndexByte(head[:n], 0) < 0
}

func variableOf(env []string, name string) (value string) {
	for _, v := range env {
		if rest, ok := strings.CutPrefix(v, name+"="); ok {
			value = rest
		}
	}
	return value
}
