package jail

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/jailinit"
)

// A Jail is a program in a network of its own, in which every address leads to
// this process and nothing else exists. It is made without root, of a user, a
// network, a mount, an IPC and, if that may mount a /proc, a PID namespace:
//
//	jail, err := sandbox.New(sandbox.Options{…})
//	sockets, err := jail.Sockets()
//	… serve them …
//	attempts, err := jail.Prepare(sandbox.Program{Argv: argv, Env: os.Environ()})
//	err = jail.Exec()
//	status, err := jail.Wait(nil)
//
// What it does not do: pathname sockets of the host stay where they are in the
// file system, and whoever listens there may have a network.
//
// If this process is killed, the kernel kills the program and everything that the program has
// started. Without a PID namespace it kills the program alone, and the others lose their network.
//
// The methods are for one goroutine, but for Signal.
type Jail struct {
	control *os.File
	rest    *os.File // a pipe at whose end all that is left in its PID namespace is killed
	program string
	mounts  *os.File // its mount namespace, see TakeDown; may be nil
	stood   *standing
	begun   bool   // the program was sent
	release func() // lets the thread end that started the jail

	planned   chan struct{} // closed when pid and unplanned are set
	unplanned error         // a *SetupError: jail init has no plan

	life   sync.Mutex // guards what follows
	pid    int        // of jail init, which becomes the program; 0 until it is known
	reaped bool       // so that its number may be another process's
}

// Options say what a jail is like.
type Options struct {
	// IPv4 and IPv6 are the addresses that the sandbox itself has. IPv6 may be the
	// zero Addr: then there is none in it.
	IPv4, IPv6 netip.Addr

	// Redirect has connections redirected by NAT also where the kernel can do
	// without: datagrams then leave no trace.
	Redirect bool

	// HostPorts are ports of the jail's loopback at which connections are handed
	// out instead of being the jail's own.
	HostPorts []uint16
	// Dialers has Sockets hand out what connects to servers in the jail.
	Dialers bool

	// Devices are paths of devices that the program may have, beside those that
	// lead nowhere.
	Devices []string
}

// What is said to the inside of a jail, and what it says.
type (
	Program    = jailinit.Program
	Apart      = jailinit.Apart
	Private    = jailinit.Private
	Attempt    = jailinit.Attempt
	SetupError = jailinit.SetupError
	ExecError  = jailinit.ExecError
)

// IsAttempted reports whether a jail sends to an address by itself: where
// Program.Packets is set.
func IsAttempted(to netip.AddrPort) bool {
	a := to.Addr().Unmap()
	return to.Port() == jailinit.AttemptedPort && (a == netip.AddrFrom4(jailinit.Attempted4) || a == netip.AddrFrom16(jailinit.Attempted6))
}

// New begins to make a jail, which goes on beside the caller's own work until Sockets is
// called. The processes have this one's limits and can be looked at by its user, so New comes
// before this process gives up either.
func New(o Options) (*Jail, error) {
	return startDivider(&jailinit.Plan{IPv4: o.IPv4.AsSlice(), IPv6: o.IPv6.AsSlice(), Redirect: o.Redirect, HostPorts: o.HostPorts, Dialers: o.Dialers, Devices: o.Devices})
}

func (j *Jail) send(message jailinit.Message) error {
	return jailinit.Send(int(j.control.Fd()), jailinit.Pack(message))
}

// stands waits until the jail stands.
func (j *Jail) stands() (report jailinit.Report, fds []int, err error) {
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
		fds, err = j.taken(report, fds)
	}
	return report, fds, err
}

// taken returns the descriptors of a report: those that came with it, or that the inside has
// held for this process to take.
func (j *Jail) taken(report jailinit.Report, fds []int) ([]int, error) {
	if len(report.Held) > 0 {
		there, err := unix.PidfdOpen(j.pid, 0)
		if err != nil {
			return nil, &SetupError{Step: "process", Err: err}
		}
		defer unix.Close(there)
		for _, fd := range report.Held {
			got, err := unix.PidfdGetfd(there, int(fd), 0)
			if err != nil {
				jailinit.CloseAll(fds)
				return nil, &SetupError{Step: "sockets", Err: fmt.Errorf("other programs of this user have as many descriptors under way between processes as ulimit -n lets it, and none can be taken without: %w", err)}
			}
			fds = append(fds, got)
		}
	}
	if len(report.Sockets) != len(fds) {
		jailinit.CloseAll(fds)
		return nil, &SetupError{Step: "control socket", Err: errors.New("a report without its sockets")}
	}
	return fds, nil
}

// unsent is the error of a message that could not be sent: what the other end said
// before it ended, if anything.
func (j *Jail) unsent(step string, err error) error {
	if _, said := j.answer(step); said != nil {
		return said
	}
	return &SetupError{Step: step, Err: err}
}

// Begin begins what Prepare does, in a jail that stands. What is wrong is for Prepare to say.
func (j *Jail) Begin(p Program) {
	j.program = p.Argv[0]
	j.begun = j.send(&p) == nil
}

// Prepare has everything in the jail be as p will find it, without any privilege,
// and returns the ways out that were tried there, whether or not one led out. What Begin was called with
// is p. The error is an [*ExecError] where it is p's fault, else a [*SetupError].
func (j *Jail) Prepare(p Program) ([]Attempt, error) {
	if !j.begun {
		j.program = p.Argv[0]
		if err := j.send(&p); err != nil {
			return nil, j.unsent("prepare the program", err)
		}
	}
	f, err := j.answer("prepare the program")
	switch {
	case err != nil:
		return nil, err
	case f == nil || len(f.Attempts) == 0:
		return nil, &SetupError{Step: "prepare the program", Err: errors.New("the process that becomes it ended")}
	}
	return f.Attempts, nil
}

// Exec starts what was prepared. Its errors are those of Prepare.
func (j *Jail) Exec() error {
	j.mounts, _ = os.Open("/proc/" + strconv.Itoa(j.pid) + "/ns/mnt")
	goOn := jailinit.Word(true)
	if err := j.send(&goOn); err != nil {
		return &SetupError{Step: "start the program", Err: err}
	}
	_, err := j.answer("start the program") // there is none where execve closed the socket
	return err
}

// answer waits for what the inside says of a step: nil where it has closed the
// socket.
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

// Signal sends the program a signal, if it has not ended. It is safe for concurrent use.
func (j *Jail) Signal(s syscall.Signal) {
	j.life.Lock()
	defer j.life.Unlock()
	if !j.reaped && j.pid != 0 {
		_ = syscall.Kill(j.pid, s)
	}
}

// Wait waits for the program's end. Each time it is stopped, and not ended,
// stopped is called, on another goroutine; it may be nil.
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

// await waits for the program's end without a thread.
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

// awaitBlocked is await before Linux 5.3.
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

// reap takes the status of the program, if it is over.
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

// TakeDown kills the processes that an ended program has left behind, and takes down the jail's
// mounts. Wait does not do so: the kernel takes longer for it than for the end itself.
func (j *Jail) TakeDown() {
	j.rest.Close()
	j.release()
	if j.mounts != nil {
		j.mounts.Close()
	}
}

// Stopped reports whether the program, which was not waited for to its end, is
// stopped now.
func (j *Jail) Stopped() bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(j.pid) + "/stat")
	if err != nil {
		return false
	}
	state := bytes.LastIndex(text, []byte(") ")) + 2 // behind the name, which may hold anything
	return state >= 2 && state < len(text) && text[state] == 'T'
}

// Close ends the jail's program, if it runs, and waits for its end.
func (j *Jail) Close() {
	<-j.planned
	j.control.Close()
	if j.stood != nil {
		jailinit.CloseAll(j.stood.fds)
		j.stood.sockets.Close()
		j.stood = nil
	}
	if j.pid != 0 {
		j.Signal(syscall.SIGKILL)
		_, _ = j.Wait(nil)
	}
	j.TakeDown()
}
