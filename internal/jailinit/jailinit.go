// Package jailinit runs in a jail: the processes that package
// sandbox/jail starts there, and the messages between them and that package. They are this same
// program, started with [Argument]. A program that imports this package is such a process before its main begins.
//
// Three processes take part, see divide:
//
//	divider   makes the PID namespace, starts the other two, and ends
//	reaper    is process 1 of the PID namespace, and ends with egressd; a fork of the divider
//	jail init makes the network and the mounts, gives up its privileges, and becomes the program
package jailinit

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Argument is the first argument of each process that starts this program. The second is one of the values
// below. The others are numbers of descriptors or processes.
const Argument = "jail-init"

// Values of the second argument.
const (
	Divider  = "divide" // the control socket, the file of the program, the pipe at whose end the reaper ends, and the one that the divider writes to
	Waker    = "wake"   // the process IDs of egressd and of the program
	jailInit = "setup"  // the control socket, the file of the program, and the pipe that the reaper closes when it is ready
)

// init returns at once unless package sandbox/jail started this process in a jail. There, it does not return.
//
// It is no call in main, since Go initialises this package as soon as those that it imports are ready. More than 150 packages of
// the command come later, and a process of a jail needs none of them (decision 83).
func init() {
	if len(os.Args) < 2 || os.Args[1] != Argument {
		return
	}
	// Capabilities, filters and namespaces belong to a thread. Go runs init on the first thread, but without LockOSThread it starts
	// other threads from that one, which the kernel refuses once that thread's children are in another PID namespace (EINVAL).
	runtime.LockOSThread()
	switch args := os.Args[2:]; {
	case len(args) == 5 && args[0] == Divider:
		divide(controlSocket(args[1]), descriptor(args[2]), descriptor(args[3]), descriptor(args[4]))
	case len(args) == 4 && args[0] == jailInit:
		setUp(controlSocket(args[1]), descriptor(args[2]), descriptor(args[3]))
	case len(args) == 3 && args[0] == Waker:
		wake(args[1], args[2])
	}
	os.Exit(exitSetup)
}

const exitSetup = 125

// descriptor returns the descriptor that an argument names, which is closed on execve from now on.
func descriptor(argument string) int {
	fd, err := strconv.Atoi(argument)
	if err != nil {
		os.Exit(exitSetup)
	}
	unix.CloseOnExec(fd)
	return fd
}

// controlSocket is descriptor for the control socket. A user who types the argument has no such
// socket and is in no jail: the process ends.
func controlSocket(argument string) int {
	control := descriptor(argument)
	if kind, err := unix.GetsockoptInt(control, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_SEQPACKET {
		os.Exit(exitSetup)
	}
	return control
}

// noReaper is in the place of the reaper's pipe where there is no PID namespace.
const noReaper = -1

// setUp makes the network, hands its sockets out, gives up every privilege, and becomes the program.
// It does not return.
func setUp(control, file, reaperReady int) {
	s := &setup{control: control, file: file, reaperReady: reaperReady}
	s.tell(s.run())
	os.Exit(exitSetup)
}

type setup struct {
	control     int
	file        int  // see WriteProgram
	reaperReady int  // a pipe that ends when the reaper is ready, or noReaper
	begun       bool // the jail stands
	mounts      *mountTable
}

// run returns only where the program could not be started.
func (s *setup) run() error {
	if err := ownProc(); err != nil {
		return &SetupError{"/proc", err}
	}
	var plan Plan
	if err := s.receive(&plan); err != nil {
		return err
	}
	report, fds, err := build(plan)
	if err != nil {
		return err
	}
	if err := s.handOut(report, fds); err != nil {
		return &SetupError{"hand the sockets out", err}
	}
	s.begun = true
	s.mounts = openMounts() // which is read again where others came in between
	var written Word
	if err := s.receive(&written); err != nil {
		return err
	}
	var program Program
	if err := readProgram(s.file, &program); err != nil {
		return err
	}
	program.devices, program.root = append(plan.Devices, terminals()...), plan.Root
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
	if err := s.awaitReaper(); err != nil {
		return err
	}
	if err := s.report(&program); err != nil {
		return err
	}
	err = syscall.Exec(path, program.Argv, program.Env)
	if errors.Is(err, syscall.ENOEXEC) && isScript(path) {
		err = syscall.Exec("/bin/sh", slices.Concat(program.Argv[:1], []string{path}, program.Argv[1:]), program.Env)
	}
	return &ExecError{Name: path, Problem: err.Error(), Missing: errors.Is(err, syscall.ENOENT)}
}

// awaitReaper waits until the reaper is out of the program's reach.
func (s *setup) awaitReaper() error {
	if s.reaperReady == noReaper {
		return nil
	}
	for {
		_, err := unix.Read(s.reaperReady, make([]byte, 1))
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("wait for the first process of the PID namespace", err)
		}
	}
}

// build makes the network, its sockets, and what else does not depend on the program.
func build(plan Plan) (report Report, fds []int, err error) {
	ipv6, err := MakeNetwork(plan)
	if err != nil {
		return report, nil, err
	}
	if plan.Interface {
		makeInterface(plan)
	}
	report.Redirected = plan.Redirect
	if err := Capture(plan, ipv6, &report.Redirected); err != nil {
		return report, nil, &SetupError{"packet filter", err}
	}
	for _, p := range jailSockets(plan, ipv6, !report.Redirected) {
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

func (s *setup) receive(into Message) error {
	text, _, err := Receive(s.control)
	if err != nil || len(text) == 0 {
		os.Exit(exitSetup) // whoever wanted the jail is gone
	}
	return Unpack(text, into)
}

// handOut sends the report with the sockets, and closes the sockets here. If other programs of this user have
// too many descriptors in transit (ETOOMANYREFS; unix(7)), it keeps the sockets until the program is executed, and egressd takes
// them with pidfd_getfd(2) before.
func (s *setup) handOut(report Report, fds []int) error {
	text := Pack(&report)
	err := syscall.Sendmsg(s.control, append(length(text), text...), syscall.UnixRights(fds...), nil, 0)
	if errors.Is(err, syscall.ETOOMANYREFS) {
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

// report tries the ways out, sends what came of it, and waits for the word to go on.
func (s *setup) report(p *Program) error {
	f := &Failure{Tried: tryWaysOut(*p), Removable: p.removable(), Foreground: groupIsOutside()}
	if len(f.Removable) > 0 || f.Foreground {
		fd, err := listen(len(f.Removable) > 0, f.Foreground)
		if err != nil {
			f.Removable, f.Foreground = nil, false // the kernel refuses both to the program
		}
		f.Listener = uint32(max(fd, 0))
	}
	if err := Send(s.control, Pack(f)); err != nil {
		return err
	}
	var goOn Word
	return s.receive(&goOn)
}

// awaitServed has egressd serve folders, and waits until it does.
func (s *setup) awaitServed(devices []int) error {
	f := &Failure{}
	for _, fd := range devices {
		f.Served = append(f.Served, uint32(fd))
	}
	if err := Send(s.control, Pack(f)); err != nil {
		return err
	}
	var goOn Word
	return s.receive(&goOn)
}

// tell says what went wrong, in the words that the other end waits for.
func (s *setup) tell(err error) {
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
		{"close what leads out", func() error { return closeDescriptors(control, kept) }},
		{"close inherited folders", func() error { return closeFolders(p.Apart != nil) }},
		{"capabilities", func() error { return dropCapabilities(p.capabilities()) }},
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
// its user may (see halveSignals of package sandbox/jail).
func limitSignals() error {
	var may unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_SIGPENDING, &may); err != nil {
		return err
	}
	may.Max = may.Cur
	return unix.Setrlimit(unix.RLIMIT_SIGPENDING, &may)
}

// RootCapabilities are what a program of root keeps where all users are mapped. They are about files, about identity and
// processes of other users, and about ports below 1024. None is about mounts, devices or the network.
var RootCapabilities = [...]uint{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL, unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_CHROOT,
}

// capabilities are those that the program has.
func (p *Program) capabilities() (all [2]unix.CapUserData) {
	if !p.root {
		return all
	}
	for _, c := range RootCapabilities {
		all[0].Permitted |= 1 << c
	}
	all[0].Effective = all[0].Permitted
	return all
}

// dropCapabilities leaves the thread, and what it executes, no others, also where its user is root.
func dropCapabilities(kept [2]unix.CapUserData) error {
	for c := uintptr(0); ; c++ {
		if c < 32 && kept[0].Permitted&(1<<c) != 0 {
			continue
		}
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
	return unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &kept[0])
}
