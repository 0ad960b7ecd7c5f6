// Package stage is the inside of a jail that package sandbox makes, and what that
// package uses of it outside. A program that is linked with it is the inside, and
// nothing else, where it was started as that by package ahead.
package stage

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/ahead"
	"github.com/egressd/egressd/internal/threads"
)

// The inside is over before the rest of the program is initialised, which takes longer
// than all that it does. Packages are initialised by what they import, else in the order of
// their paths: so it imports none that waits for one of a late path, as net/netip and
// path/filepath do.
func init() {
	switch {
	case len(os.Args) == 4 && os.Args[1] == ahead.Argument:
		divide(os.Args[2], os.Args[3])
	case len(os.Args) == 3 && os.Args[1] == ahead.Argument:
		run(os.Args[2])
	case len(os.Args) == 2 && os.Args[1] == ahead.InitArgument:
		runInit()
	}
}

// run is the process that sandbox.NewJail has started. It makes its network, hands
// the sockets out, gives up all that it could undo this with, and becomes the
// program. It is on one thread, to which its privileges
// belong: initialisers are, and to say so again starts another thread.
func run(socket string) {
	control := controlSocket(socket)
	if !threads.Lulled() {
		threads.Doze()
	}
	s := &inside{control: control}
	s.tell(s.run())
	os.Exit(exitSetup)
}

const exitSetup = 125

// controlSocket returns the descriptor that an argument names. Without one, the process was not
// started by package ahead, and is in no jail: it ends.
func controlSocket(argument string) int {
	control, err := strconv.Atoi(argument)
	if err != nil {
		os.Exit(exitSetup)
	}
	if kind, err := unix.GetsockoptInt(control, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_SEQPACKET {
		os.Exit(exitSetup)
	}
	unix.CloseOnExec(control)
	return control
}

type inside struct {
	control int
	begun   bool  // the jail stands
	held    []int // what the other end takes, see handOut
	mounts  *mountTable
}

// run returns only where the program could not be started.
func (s *inside) run() error {
	if err := ownProc(); err != nil {
		return &SetupError{"/proc", err}
	}
	early := newNetwork(usual) // while the process outside initialises itself
	var plan Plan
	if err := s.receive(&plan); err != nil {
		return err
	}
	report, fds, err := build(plan, early.as(plan))
	if err != nil {
		return err
	}
	if err := s.handOut(report, fds); err != nil {
		return &SetupError{"hand the sockets out", err}
	}
	s.begun = true
	s.mounts = openMounts() // which is read again where others came in between
	var program Program
	if err := s.receive(&program); err != nil {
		return err
	}
	CloseAll(s.held)
	program.devices = append(plan.Devices, terminals()...)
	kept := filesOf(slices.Concat(program.Hidden, program.Fixed)) // before they are hidden
	if err := s.rearrange(plan, &program); err != nil {
		return err
	}
	path, err := Find(program)
	if err != nil {
		return err
	}
	if err := confine(s.control, kept, program); err != nil {
		return err
	}
	if err := s.report(attempts(program)); err != nil {
		return err
	}
	threads.WakeThis()
	err = syscall.Exec(path, program.Argv, program.Env)
	return &ExecError{Name: path, Problem: err.Error(), Missing: errors.Is(err, syscall.ENOENT)}
}

// build makes everything that is inside but for the network.
func build(plan Plan, net network) (Report, []int, error) {
	report := Report{Redirected: net.redirected}
	if net.err != nil {
		return report, nil, net.err
	}
	var fds []int
	for _, p := range jailSockets(plan, net.ipv6, !net.redirected) {
		fd, err := p.Open()
		if err != nil {
			return report, nil, &SetupError{"socket " + string(p.Kind), err}
		}
		report.Sockets, fds = append(report.Sockets, p.Kind), append(fds, fd)
	}
	if err := closeDevices(plan.Devices, terminals()); err != nil {
		return report, nil, &SetupError{"devices", err}
	}
	return report, fds, hideHelpers()
}

func (s *inside) receive(into Message) error {
	await(s.control)
	text, _, err := Receive(s.control)
	if err != nil || len(text) == 0 {
		os.Exit(exitSetup) // whoever wanted the jail is gone
	}
	return Unpack(text, into)
}

// await waits until something can be read. Go's scheduler does not hear of it, and so
// starts no thread to take over from this one: there is nothing else to do.
func await(fd int) {
	there := unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	_, _, _ = unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&there)), 1, 0, 0, 0, 0)
}

// handOut sends the report with the sockets, and keeps none but where others of this user
// have as many descriptors under way as may be (ETOOMANYREFS; unix(7)), such as a program in another
// jail: then the other end takes the sockets from here.
func (s *inside) handOut(report Report, fds []int) error {
	err := syscall.Sendmsg(s.control, append([]byte{0}, Pack(&report)...), syscall.UnixRights(fds...), nil, 0)
	if errors.Is(err, syscall.ETOOMANYREFS) {
		s.held = fds
		for _, fd := range fds {
			report.Held = append(report.Held, uint32(fd))
		}
		return Send(s.control, Pack(&report))
	}
	CloseAll(fds)
	return err
}

// CloseAll closes descriptors.
func CloseAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// report sends what was tried, and waits for the word to go on.
func (s *inside) report(all []Attempt) error {
	if err := Send(s.control, Pack(&Failure{Attempts: all})); err != nil {
		return err
	}
	var goOn Word
	return s.receive(&goOn)
}

// tell says what went wrong, in the words that the other end waits for.
func (s *inside) tell(err error) {
	var setup *SetupError
	var program *ExecError
	var message Message
	switch {
	case errors.As(err, &program):
		message = &Failure{Problem: program.Problem, Missing: program.Missing}
	case s.begun:
		message = &Failure{Problem: err.Error(), Setup: true}
	case errors.As(err, &setup):
		message = &Report{Step: setup.Step, Err: setup.Err.Error()}
	default:
		message = &Report{Step: "namespaces", Err: err.Error()}
	}
	_ = Send(s.control, Pack(message))
}

// confine gives up, for good, what could undo the jail: privileges, those that a
// program with set-user-ID would have, descriptors that lead out, and the system
// calls that reach beyond a network namespace.
//
// Where p is apart, descriptors must not lead to the host's folders either.
func confine(control int, kept keptFiles, p Program) error {
	steps := []struct {
		name string
		do   func() error
	}{
		{"close what leads out", func() error { return closeDoors(control, kept) }},
		{"close inherited folders", func() error { return closeFolders(p.Apart != nil) }},
		{"capabilities", dropCapabilities},
		{"no new privileges", func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }},
		{"scope of signals", scopeSignals},
		{"signals of others", limitSignals},
		{"filter of system calls", func() error { return FilterCalls(p.Nested) }},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("confine the program: %s: %w", s.name, err)
		}
	}
	return nil
}

// limitSignals has the program not raise again how many signals it may queue, which are half of those that
// its user may (see package ahead).
func limitSignals() error {
	var may unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_SIGPENDING, &may); err != nil {
		return err
	}
	may.Max = may.Cur
	return unix.Setrlimit(unix.RLIMIT_SIGPENDING, &may)
}

// dropCapabilities leaves the thread, and what it executes, without any, also
// where its user is root.
func dropCapabilities() error {
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // the kernel knows no more
		}
		if err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	none := [2]unix.CapUserData{}
	return unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0])
}
