// Package jail starts a program in namespaces of its own, without root. Every address in the jail's network
// leads to this process.
//
//	j, err := jail.New(jail.Options{…})
//	sockets, err := j.Sockets()
//	… serve them …
//	attempts, err := j.Prepare(jail.Program{Argv: argv, Env: os.Environ()})
//	err = j.Exec()
//	status, err := j.Wait(nil)
package jail

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/jailinit"
)

// A Jail is a program in a user, a network, a mount and an IPC namespace of its own, and in a PID namespace if
// that one may mount /proc. Pathname sockets of the host stay in the file system; a server at such a socket may
// have a network.
//
// If this process is killed, the kernel kills the program and all its descendants. Without a PID namespace the
// kernel kills the program alone, and the descendants lose their network.
//
// The methods are for one goroutine, except Signal.
type Jail struct {
	control *os.File
	file    int      // in which jail init finds the program; -1 once it is closed
	rest    *os.File // a pipe at whose end all that is left in its PID namespace is killed
	program string
	mounts  *os.File // its mount namespace, see TakeDown; may be nil
	made    *madeJail
	serve   func(place, device int) error
	begun   bool           // the program is being sent, see Begin
	sending sync.WaitGroup // of the program
	unsent  error          // what came of that
	release func()         // lets the thread end that started the jail
	root    bool           // see AllUsers

	planned   chan struct{} // closed when pid, network, apart, reaper and unplanned are set
	network   string        // as the kernel calls it
	apart     bool          // it has a PID namespace
	reaper    int           // the parent of processes that have lost theirs; 0 without a PID namespace
	unplanned error         // a *SetupError: jail init has no plan

	life   sync.Mutex // guards what follows
	pid    int        // of jail init, which becomes the program; 0 until it is known
	reaped bool       // so that its number may be another process's
}

// OwnProcesses reports whether the program has a PID namespace. It waits until the jail is planned.
func (j *Jail) OwnProcesses() bool {
	<-j.planned
	return j.apart
}

// AllUsers reports whether the program is one of root, and has all users that this process knows: files show their owners, and
// it may change them. Else it has its own user and group alone.
func (j *Jail) AllUsers() bool { return j.root }

// Options describe a jail.
type Options struct {
	// IPv4 and IPv6 are the sandbox's own addresses. With a zero IPv6 the jail has no IPv6.
	IPv4, IPv6 netip.Addr

	// Redirect captures connections by NAT even if the kernel supports tproxy. Refused datagrams leave no record
	// then.
	Redirect bool

	// HostPorts are ports of the jail's loopback whose connections arrive at this process.
	HostPorts []uint16
	// Dialers makes Sockets return dialers to servers in the jail.
	Dialers bool

	// Serve is called for each folder of Apart.Served with its place there and a descriptor of /dev/fuse, which it takes over. It
	// returns when the folder is served.
	Serve func(place, device int) error

	// Devices are paths of devices that the program may use, beside the harmless ones.
	Devices []string
}

// Messages to jail init, and from it.
type (
	Program    = jailinit.Program
	Apart      = jailinit.Apart
	Private    = jailinit.Private
	WayOut     = jailinit.WayOut
	SetupError = jailinit.SetupError
	ExecError  = jailinit.ExecError
)

// IsAttempted reports whether jail init itself sends to an address, as it does if Program.Packets is set.
func IsAttempted(to netip.AddrPort) bool {
	a := to.Addr().Unmap()
	return to.Port() == jailinit.AttemptedPort && (a == netip.AddrFrom4(jailinit.Attempted4) || a == netip.AddrFrom16(jailinit.Attempted6))
}

// RefusedStream returns a standard stream of this process with which Prepare will fail, and what it is; or "".
func RefusedStream() (fd int, what string) { return jailinit.RefusedStream() }

// New starts to make a jail and returns at once; Sockets waits for the jail. The jail inherits this process's
// limits, and this process has to be able to inspect it, so call New before this process gives up either.
func New(o Options) (*Jail, error) {
	return startDivider(o.Serve, &jailinit.Plan{IPv4: o.IPv4.AsSlice(), IPv6: o.IPv6.AsSlice(), Redirect: o.Redirect, HostPorts: o.HostPorts, Dialers: o.Dialers, Devices: o.Devices, Interface: true})
}

func (j *Jail) send(message jailinit.Message) error {
	return jailinit.Send(int(j.control.Fd()), jailinit.Pack(message))
}

// awaitMade waits until jail init reports that the jail is made.
func (j *Jail) awaitMade() (report jailinit.Report, fds []int, err error) {
	if <-j.planned; j.unplanned != nil {
		return report, nil, j.unplanned
	}
	text, fds, err := jailinit.Receive(int(j.control.Fd()))
	switch {
	case err != nil:
		err = &SetupError{Step: "control socket", Err: err}
	case len(text) == 0:
		err = &SetupError{Step: "namespaces", Err: errors.New("the process that makes them ended")}
	case jailinit.Unpack(text, &report) != nil:
		err = &SetupError{Step: "control socket", Err: errors.New("a report that cannot be read")}
	case report.Err != "":
		err = &SetupError{Step: report.Step, Err: errors.New(report.Err)}
	default:
		fds, err = j.descriptors(report, fds)
	}
	return report, fds, err
}

// descriptors returns the descriptors of a report: they came with the report, or this process takes them from jail
// init.
func (j *Jail) descriptors(report jailinit.Report, fds []int) ([]int, error) {
	if len(report.Held) > 0 {
		held, err := j.take(report.Held)
		if err != nil {
			jailinit.CloseAll(fds)
			return nil, &SetupError{Step: "sockets", Err: fmt.Errorf("other programs of this user have as many descriptors under way between processes as ulimit -n lets it, and none can be taken without: %w", err)}
		}
		fds = append(fds, held...)
	}
	if len(report.Sockets) != len(fds) {
		jailinit.CloseAll(fds)
		return nil, &SetupError{Step: "control socket", Err: errors.New("a report without its sockets")}
	}
	return fds, nil
}

// take takes descriptors of jail init.
func (j *Jail) take(theirs []uint32) (fds []int, err error) {
	there, err := unix.PidfdOpen(j.pid, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(there)
	for _, fd := range theirs {
		got, err := unix.PidfdGetfd(there, int(fd), 0)
		if err != nil {
			jailinit.CloseAll(fds)
			return nil, os.NewSyscallError("pidfd_getfd", err)
		}
		fds = append(fds, got)
	}
	return fds, nil
}

// serveFolders has folders served, and has jail init go on.
func (j *Jail) serveFolders(theirs []uint32) error {
	devices, err := j.take(theirs)
	if err != nil {
		return err
	}
	for place, device := range devices {
		if err := j.serve(place, device); err != nil {
			jailinit.CloseAll(devices[place+1:])
			return err
		}
	}
	goOn := jailinit.Word(true)
	return j.send(&goOn)
}

// whyUnsent returns the error of jail init if it sent one before it ended, else err.
func (j *Jail) whyUnsent(step string, err error) error {
	if _, said := j.answer(step); said != nil {
		return said
	}
	return &SetupError{Step: step, Err: err}
}

// Begin starts what Prepare does, so that both processes work meanwhile. Prepare returns the errors. The jail need not stand yet:
// jail init takes the program as soon as it does.
func (j *Jail) Begin(p Program) {
	j.program, j.begun = p.Argv[0], true
	j.sending.Go(func() {
		written := jailinit.Word(true)
		j.unsent = jailinit.WriteProgram(j.file, &p)
		<-j.planned // the plan comes first
		if j.unsent == nil {
			j.unsent = j.send(&written)
		}
		unix.Close(j.file)
		j.file = -1
	})
}

// Prepare drops all privileges in the jail, makes everything ready for p, and returns the results of the escape
// attempts made there. If Begin was called, p is the same program. The error is an [*ExecError] if p is at
// fault, else a [*SetupError].
func (j *Jail) Prepare(p Program) ([]WayOut, error) {
	if !j.begun {
		j.Begin(p)
	}
	if j.sending.Wait(); j.unsent != nil {
		return nil, j.whyUnsent("prepare the program", j.unsent)
	}
	f, err := j.answer("prepare the program")
	if err == nil && f != nil && len(f.Served) > 0 {
		if err := j.serveFolders(f.Served); err != nil {
			return nil, &SetupError{Step: "prepare the program", Err: err}
		}
		f, err = j.answer("prepare the program")
	}
	switch {
	case err != nil:
		return nil, err
	case f == nil || len(f.Tried) == 0:
		return nil, &SetupError{Step: "prepare the program", Err: errors.New("the process that becomes it ended")}
	}
	if len(f.Removable) > 0 || f.Foreground {
		if err := j.deputize(f); err != nil {
			return nil, &SetupError{Step: "prepare the program", Err: err}
		}
	}
	return f.Tried, nil
}

// Exec executes the prepared program. Its errors are those of Prepare.
func (j *Jail) Exec() error {
	j.mounts, _ = os.Open("/proc/" + strconv.Itoa(j.pid) + "/ns/mnt")
	goOn := jailinit.Word(true)
	if err := j.send(&goOn); err != nil {
		return &SetupError{Step: "start the program", Err: err}
	}
	_, err := j.answer("start the program") // there is none where execve closed the socket
	return err
}

// answer reads jail init's answer to a step. It returns nil if jail init has closed the socket.
func (j *Jail) answer(step string) (*jailinit.Failure, error) {
	text, _, err := jailinit.Receive(int(j.control.Fd()))
	switch {
	case err != nil:
		return nil, &SetupError{Step: step, Err: err}
	case len(text) == 0:
		return nil, nil
	}
	var f jailinit.Failure
	if err := jailinit.Unpack(text, &f); err != nil {
		return nil, &SetupError{Step: step, Err: err}
	}
	switch {
	case f.Setup:
		return nil, &SetupError{Step: step, Err: errors.New(f.Problem)}
	case f.Problem != "":
		return nil, &ExecError{Name: j.program, Problem: f.Problem, Missing: f.Missing}
	}
	return &f, nil
}

// Signal sends the program a signal if the program has not ended. It is safe for concurrent use.
func (j *Jail) Signal(s syscall.Signal) {
	j.life.Lock()
	defer j.life.Unlock()
	if !j.reaped && j.pid != 0 {
		_ = syscall.Kill(j.pid, s)
	}
}

// Wait waits for the program's end. It calls stopped, unless nil, on another goroutine each time the program is
// stopped.
func (j *Jail) Wait(stopped func()) (syscall.WaitStatus, error) {
	if stopped != nil {
		done := j.watchStops(stopped)
		defer func() { go done() }() // which waits until no signal is on its way
	}
	if status, err := j.await(); !errors.Is(err, errors.ErrUnsupported) {
		return status, err
	}
	return j.awaitBlocked()
}

// await waits for the program's end without blocking a thread.
func (j *Jail) await() (status syscall.WaitStatus, err error) {
	fd, err := unix.PidfdOpen(j.pid, 0)
	if err != nil {
		return 0, errors.ErrUnsupported
	}
	if syscall.SetNonblock(fd, true) != nil { // else os.NewFile does not have it polled
		unix.Close(fd)
		return 0, errors.ErrUnsupported
	}
	f := os.NewFile(uintptr(fd), "program")
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, errors.ErrUnsupported
	}
	var failed error
	err = raw.Read(func(uintptr) bool {
		var over bool
		status, over, failed = j.reap()
		return over || failed != nil
	})
	if err != nil && failed == nil {
		return 0, errors.ErrUnsupported // it cannot be polled
	}
	return status, failed
}

// awaitBlocked is await where pidfd_open(2) fails, for example by the seccomp filter of a container.
func (j *Jail) awaitBlocked() (syscall.WaitStatus, error) {
	for {
		if err := unix.Waitid(unix.P_PID, j.pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return 0, err
		}
		if status, over, err := j.reap(); over || err != nil {
			return status, err
		}
	}
}

// reap takes the program's status if the program has ended.
func (j *Jail) reap() (status syscall.WaitStatus, over bool, err error) {
	j.life.Lock()
	defer j.life.Unlock()
	for {
		pid, err := syscall.Wait4(j.pid, &status, syscall.WNOHANG, nil)
		if !errors.Is(err, syscall.EINTR) {
			j.reaped = pid == j.pid
			return status, j.reaped, err
		}
	}
}

// watchStops calls stopped each time the program is stopped, until done is called.
func (j *Jail) watchStops(stopped func()) (done func()) {
	changed := make(chan os.Signal, 1)
	over := make(chan struct{})
	signal.Notify(changed, syscall.SIGCHLD)
	select {
	case changed <- syscall.SIGCHLD: // what came before is not told
	default:
	}
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-changed:
			case <-over:
				return
			}
			var info unix.Siginfo
			if unix.Waitid(unix.P_PID, j.pid, &info, unix.WSTOPPED|unix.WNOHANG, nil) == nil && info.Signo != 0 {
				stopped()
			}
		}
	})
	return func() {
		signal.Stop(changed)
		close(over)
		watching.Wait()
	}
}

// TakeDown kills the processes that the program has left behind, and unmounts the jail's mounts. Wait skips
// this work, because the kernel needs longer to unmount than to end the program.
func (j *Jail) TakeDown() {
	j.rest.Close()
	j.release()
	if j.mounts != nil {
		j.mounts.Close()
	}
}

// Stopped reports whether the program is stopped now. The program must not have been waited for.
func (j *Jail) Stopped() bool { return jailinit.IsStopped(strconv.Itoa(j.pid)) }

// StopAlong stops this process, whose program is stopped. It returns when somebody has continued this process or the
// program; then both run.
func (j *Jail) StopAlong() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	self := syscall.Getpid()
	waker, err := syscall.ForkExec("/proc/self/exe", []string{os.Args[0], jailinit.Argument, jailinit.Waker, strconv.Itoa(self), strconv.Itoa(j.pid)},
		&syscall.ProcAttr{Env: os.Environ(), Sys: &syscall.SysProcAttr{Setsid: true}}) // apart from the terminal and its signals
	_ = unix.Tgkill(self, unix.Gettid(), syscall.SIGSTOP) // sent to this thread, it stops before the next line; to the process, perhaps later
	if err == nil {
		_ = syscall.Kill(waker, syscall.SIGKILL)
		_, _ = syscall.Wait4(waker, nil, 0, nil)
	}
	if j.Stopped() {
		j.Signal(syscall.SIGCONT)
	}
}

// Close kills the program if it runs, and waits for its end.
func (j *Jail) Close() {
	<-j.planned
	j.Signal(syscall.SIGKILL)
	j.sending.Wait()
	j.control.Close()
	if j.file >= 0 {
		unix.Close(j.file)
		j.file = -1
	}
	if j.made != nil {
		jailinit.CloseAll(j.made.fds)
		j.made.sockets.Close()
		j.made = nil
	}
	if j.pid != 0 {
		_, _ = j.Wait(nil)
	}
	j.TakeDown()
}
