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

	"github.com/egressd/egressd/internal/threads"
)

// Argument is the first argument of a process that is the inside of a jail. The
// second is the descriptor of its control socket. A third is that of a pipe: then the process
// makes the jail's PID namespace, and starts the inside in there.
const Argument = "jail-stage"

// InitArgument is the one argument of the first process of a jail's PID namespace. Its standard
// input is the pipe at whose end it ends.
const InitArgument = "jail-init"

// A Process is the inside of a jail.
type Process struct {
	PID     int
	Control int // a socket (SOCK_SEQPACKET) whose other end it has
	Life    int // a pipe: where it is closed the kernel kills all that is left in the jail's PID namespace
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
	roomForMain(len(args))
	if len(args) < 2 || args[1] != "run" {
		return nil
	}
	threads.Doze() // while there are few of them, and nothing else
	return launch(args[0])
}

// roomForMain has the stack of the goroutine that initialises, and runs main, be as large
// as either needs, while there is nothing on it: else it is copied whenever it has become
// too small, with all that calls it by then.
//
//go:noinline
func roomForMain(n int) {
	if n < 0 {
		var room [100 << 10]byte
		os.Stderr.Write(room[:])
	}
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

// launch has a thread of its own start the process, which is called name. The kernel kills
// that process when the thread ends: it does not before this process does.
func launch(name string) chan outcome {
	ready := make(chan outcome, 1)
	go func() {
		runtime.LockOSThread()
		var o outcome
		o.err = threads.Awake(func() (err error) {
			o.Process, err = start(name)
			return err
		})
		ready <- o
		if o.err == nil {
			select {}
		}
	}()
	go func() {}() // another thread takes the goroutine that was begun last only after a while (runqgrab of package runtime)
	return ready
}

func start(name string) (Process, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return Process{}, os.NewSyscallError("socketpair", err)
	}
	var life [2]int
	if err := syscall.Pipe2(life[:], syscall.O_CLOEXEC); err != nil {
		syscall.Close(fds[0])
		syscall.Close(fds[1])
		return Process{}, os.NewSyscallError("pipe2", err)
	}
	pid, err := again(name, fds[1], life[0])
	syscall.Close(fds[1])
	syscall.Close(life[0])
	if err == nil {
		pid, err = inside(pid, fds[0])
	}
	if err == nil {
		threads.Lull(pid)
	}
	if err != nil {
		syscall.Close(fds[0])
		syscall.Close(life[1])
		return Process{}, err
	}
	return Process{pid, fds[0], life[1]}, nil
}

// inside waits until first has made the PID namespace, and returns the process in there. The
// kernel makes that a child of this process. Where first says 0 it is the inside itself: there a
// namespace could have no /proc.
func inside(first, control int) (pid int, err error) {
	said := make([]byte, 16)
	n, err := syscall.Read(control, said)
	for err == syscall.EINTR {
		n, err = syscall.Read(control, said)
	}
	if err == nil {
		pid, err = strconv.Atoi(string(said[:n]))
	}
	if err == nil && pid == 0 {
		return first, nil
	}
	end(first)
	if pid < 0 {
		err = os.NewSyscallError("PID namespace", syscall.Errno(-pid))
	}
	return pid, err
}

func end(pid int) {
	_ = syscall.Kill(pid, syscall.SIGKILL)
	_, _ = syscall.Wait4(pid, nil, 0, nil)
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
//
// Its memory is shared until it has been executed, not copied (vfork(2)): to copy the
// tables of this process's pages takes longer than all else here, and so does each page
// that it writes to meanwhile. Package syscall writes the mapping of users before the
// process goes on, for which it must not share memory; here that is done afterwards.
// Until then the process has no user of its own, which nothing that it does before it
// is told its plan needs: the capabilities are ambient.
func again(name string, control, life int) (pid int, err error) {
	for _, fd := range []int{control, life} {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_SETFD, 0); errno != 0 {
			return 0, errno
		}
	}
	defer leaveSignals()()
	pid, err = syscall.ForkExec("/proc/self/exe", []string{name, Argument, strconv.Itoa(control), strconv.Itoa(life)}, &syscall.ProcAttr{
		Env:   append(settings[:], os.Environ()...), // the first of a name counts
		Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC | syscall.CLONE_VM | syscall.CLONE_VFORK,
			AmbientCaps: capabilities,
			Pdeathsig:   syscall.SIGKILL,
		},
	})
	if err != nil {
		return 0, err
	}
	if err := mapUsers(pid); err != nil {
		end(pid)
		return 0, err
	}
	return pid, nil
}

// leaveSignals has a user namespace that is made until done is called have half of the
// signals that may be queued for the user of this process (RLIMIT_SIGPENDING): the kernel
// takes the limit of who makes the namespace for all in it together. A program in a jail could queue
// all of them for itself else, and Go's runtime, which reaches its threads by queued
// signals where all have to make a system call, would wait for good, in any egressd of that user.
func leaveSignals() (done func()) {
	const pending = 11 // RLIMIT_SIGPENDING
	var own syscall.Rlimit
	if syscall.Getrlimit(pending, &own) != nil {
		return func() {}
	}
	half := own
	half.Cur /= 2
	_ = syscall.Setrlimit(pending, &half) // nobody is refused to lower it
	return func() { _ = syscall.Setrlimit(pending, &own) }
}

// mapUsers has the user and the group of this process be the same in the user namespace
// of another (user_namespaces(7)).
func mapUsers(pid int) error {
	of := func(id int) string { return strconv.Itoa(id) + " " + strconv.Itoa(id) + " 1" }
	for _, setting := range [...][2]string{{"setgroups", "deny"}, {"uid_map", of(os.Getuid())}, {"gid_map", of(os.Getgid())}} {
		if err := write("/proc/"+strconv.Itoa(pid)+"/"+setting[0], setting[1]); err != nil {
			return &os.PathError{Op: "write", Path: setting[0], Err: err}
		}
	}
	return nil
}

func write(path, text string) error {
	fd, err := syscall.Open(path, syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	_, err = syscall.Write(fd, []byte(text))
	return err
}
