// Package ahead starts this program once more, in new namespaces, as the inside of
// a jail; where it was started as "run", before anything else of it is. To
// initialise all that is linked into it takes some milliseconds, and so do the
// namespaces: the one goes on beside the other.
//
// For that, it imports next to nothing: the packages of a program are initialised
// in the order of their paths, as far as what they import lets them be, so that its
// variables are among the first (go.dev/ref/spec#Package_initialization).
package ahead

import (
	"os"
	"runtime"
	"strconv"
	"syscall"
)

// Argument is the first argument of a process that is the inside of a jail. The
// second is the descriptor of its control socket.
const Argument = "jail-stage"

// A Process is the inside of a jail.
type Process struct {
	PID     int
	Control int // a socket (SOCK_SEQPACKET) whose other end it has
}

// settings of Go's runtime are for the inside, which does one thing after the other while
// this process needs the other processors, and is over before it would know what control
// group it is in. The program does not get its variables from there.
var settings = [...]string{"GOMAXPROCS=1", "GODEBUG=containermaxprocs=0"}

type outcome struct {
	Process
	err error
}

// begun has the process that was started ahead, if one was.
var begun = begin(os.Args)

func begin(args []string) chan outcome {
	if len(args) < 2 || args[1] != "run" {
		return nil
	}
	return launch(args[0])
}

// Start starts the inside of a jail, or returns what was started ahead. It is not
// for concurrent use. The process is killed when this one ends.
func Start() (Process, error) {
	ready := begun
	begun = nil
	if ready == nil {
		ready = launch(os.Args[0])
	}
	o := <-ready
	return o.Process, o.err
}

// launch has a thread of its own start the process, which is called name. The kernel
// kills that when the thread ends: it does not before this process does.
func launch(name string) chan outcome {
	ready := make(chan outcome, 1)
	go func() {
		runtime.LockOSThread()
		p, err := start(name)
		ready <- outcome{p, err}
		if err == nil {
			select {}
		}
	}()
	return ready
}

func start(name string) (Process, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return Process{}, os.NewSyscallError("socketpair", err)
	}
	defer syscall.Close(fds[1])
	pid, err := again(name, fds[1])
	if err != nil {
		syscall.Close(fds[0])
		return Process{}, err
	}
	return Process{pid, fds[0]}, nil
}

// capabilities are those that make a jail, of linux/capability.h.
var capabilities = []uintptr{
	12, // CAP_NET_ADMIN
	13, // CAP_NET_RAW
	10, // CAP_NET_BIND_SERVICE
	21, // CAP_SYS_ADMIN
	8,  // CAP_SETPCAP
	1,  // CAP_DAC_OVERRIDE
	3,  // CAP_FOWNER
	0,  // CAP_CHOWN
}

// again runs this program again. Descriptors that this process was given stay in
// place, as they do for any program that is started by another.
func again(name string, control int) (pid int, err error) {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(control), syscall.F_SETFD, 0); errno != 0 {
		return 0, errno
	}
	uid, gid := os.Getuid(), os.Getgid()
	return syscall.ForkExec("/proc/self/exe", []string{name, Argument, strconv.Itoa(control)}, &syscall.ProcAttr{
		Env:   append(settings[:], os.Environ()...), // the first of a name counts
		Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}},
			AmbientCaps: capabilities,
			Pdeathsig:   syscall.SIGKILL,
		},
	})
}
