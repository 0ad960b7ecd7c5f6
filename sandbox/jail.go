package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/ahead"
)

// A Jail is a program in a network of its own, in which every address leads to
// this process and nothing else exists. It is made without root, of a user, a
// network and a mount namespace:
//
//	jail, err := sandbox.NewJail(sandbox.JailOptions{…})
//	sockets, err := jail.Sockets()
//	… serve them …
//	attempts, err := jail.Prepare(sandbox.Program{Argv: argv, Env: os.Environ()})
//	err = jail.Exec()
//	status, err := jail.Wait(nil)
//
// What it does not do: pathname sockets of the host stay where they are in the
// file system, and whoever listens there may have a network.
//
// The program is killed when this process is, and what it has started loses
// its network then, since all of it ends here.
//
// The methods are for one goroutine.
type Jail struct {
	pid     int
	control *os.File
	program string
}

// JailOptions say what a jail is like.
type JailOptions struct {
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
}

// Sockets are what a jail hands out: all that its program sends arrives there. The
// caller closes them.
type Sockets struct {
	TCP        []net.Listener   // connections to anywhere
	DNS        []net.PacketConn // datagrams to port 53 of anywhere
	DNSStreams []net.Listener   // connections to port 53 of anywhere
	UDP        []*Datagrams     // datagrams to anywhere else; none where Redirected

	Proxy net.Listener // for those who know of a proxy; nil in a jail

	HostPorts map[uint16][]net.Listener // as in JailOptions
	Dialers   *Dialers                  // nil where JailOptions want none

	// Programs are those behind the connections and datagrams. It may be nil.
	Programs *Programs

	// Redirected says that connections are redirected by NAT: the kernel tells
	// where they were going by SO_ORIGINAL_DST. Else their own end has the
	// address.
	Redirected bool

	held []int // of those that came by a door, see Release
}

// A SetupError says that the jail could not be made.
type SetupError struct {
	Step string // what could not be done: "user namespace", …
	Err  error
}

func (e *SetupError) Error() string { return fmt.Sprintf("make the sandbox: %s: %v", e.Step, e.Err) }
func (e *SetupError) Unwrap() error { return e.Err }

// An ExecError says that the program could not be started in the jail.
type ExecError struct {
	Name    string
	Problem string
	Missing bool // there is no such program
}

func (e *ExecError) Error() string { return e.Name + ": " + e.Problem }

// Messages on the control socket, one JSON object each.
type (
	jailPlan struct {
		IPv4, IPv6 netip.Addr
		Redirect   bool
		HostPorts  []uint16
		Dialers    bool
		Again      bool // the network may have been made before
	}
	jailReport struct {
		Sockets    []socketKind // in the order of the descriptors that come with it
		Redirected bool
		Step, Err  string // what went wrong, instead
	}
	jailFailure struct {
		Attempts []Attempt // what was tried, where nothing failed
		Problem  string
		Missing  bool
		Setup    bool // it is not the program's fault
	}
)

// A Program is what runs in a jail.
type Program struct {
	// Argv is the program, which is looked for in the PATH that Env has, and its
	// arguments.
	Argv, Env []string

	// Apart has the program see a file system of its own; nil: the host's.
	Apart *Apart

	// Hidden are files and folders that are not there for the program, or are
	// empty, and stay so. What does not exist is passed over.
	Hidden []string

	// Doors are sockets, devices, and folders of sockets that are hidden, too, but
	// may be moved about, with what hides them.
	Doors []string

	// Covered are files that read otherwise for the program, and cannot be
	// written by it. What does not exist is passed over.
	Covered map[string][]byte
	// Fixed are files and folders that the program cannot change, replace or remove,
	// by whatever path. What is in a folder of a folder that is fixed is as well.
	Fixed []string

	// Nested lets the program make mount namespaces, as sandboxes inside of this
	// one do. With it a program can replace what is Fixed, and the folders above
	// it, in every folder that it can write.
	Nested bool

	// Packets has Prepare begin connections and send datagrams to addresses for
	// documentation, without waiting for what comes of them.
	Packets bool
}

// NewJail begins to make a jail. That goes on beside the caller's own work until
// Sockets is called; in a program that was started as "run" it has begun already.
func NewJail(o JailOptions) (*Jail, error) {
	p, err := ahead.Start()
	if err != nil {
		return nil, &SetupError{"user namespace", err}
	}
	j := &Jail{pid: p.PID, control: os.NewFile(uintptr(p.Control), "jail")}
	if err := j.send(jailPlan{IPv4: o.IPv4, IPv6: o.IPv6, Redirect: o.Redirect, HostPorts: o.HostPorts, Dialers: o.Dialers}); err != nil {
		j.Close()
		return nil, &SetupError{"control socket", err}
	}
	return j, nil
}

func (j *Jail) send(message any) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	return sendAll(int(j.control.Fd()), text)
}

// maxMessage is the room for one message: most of it for a command and its
// environment.
const maxMessage = 4 << 20

// sendAll sends a message of any length in packets that the socket takes.
func sendAll(fd int, text []byte) error {
	const packet = 32 << 10
	for more := true; more; {
		n := min(len(text), packet)
		more = len(text) > n
		head := byte(0)
		if more {
			head = 1
		}
		if err := syscall.Sendmsg(fd, append([]byte{head}, text[:n]...), nil, nil, 0); err != nil {
			return err
		}
		text = text[n:]
	}
	return nil
}

// descriptorsOfMessage is how many the kernel lets one message carry (SCM_MAX_FD).
const descriptorsOfMessage = 253

// receiveAll is the other end of sendAll. An end without a message is an empty
// one. Descriptors may come with its first packet.
func receiveAll(fd int) (text []byte, fds []int, err error) {
	packet, rights := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(descriptorsOfMessage*4))
	for len(text) < maxMessage {
		n, oob, _, _, err := syscall.Recvmsg(fd, packet, rights, syscall.MSG_CMSG_CLOEXEC)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return nil, fds, err
		}
		if oob > 0 {
			fds = append(fds, descriptors(rights[:oob])...)
		}
		text = append(text, packet[1:n]...)
		if packet[0] == 0 {
			return text, fds, nil
		}
	}
	return nil, fds, errors.New("a message without end")
}

func descriptors(rights []byte) (fds []int) {
	messages, err := syscall.ParseSocketControlMessage(rights)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		if got, err := syscall.ParseUnixRights(&m); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

// Sockets waits until the jail stands and returns what it hands out. The error is
// a [*SetupError].
func (j *Jail) Sockets() (*Sockets, error) {
	report, fds, err := j.stands()
	if err != nil {
		return nil, err
	}
	return j.socketsOf(report, fds)
}

// stands waits until the jail stands.
func (j *Jail) stands() (report jailReport, fds []int, err error) {
	text, fds, err := receiveAll(int(j.control.Fd()))
	switch {
	case err != nil:
		err = &SetupError{"control socket", err}
	case len(text) == 0:
		err = &SetupError{"namespaces", errors.New("the process that makes them ended")}
	case json.Unmarshal(text, &report) != nil || len(report.Sockets) != len(fds):
		err = &SetupError{"control socket", errors.New("a report that cannot be read")}
	case report.Err != "":
		err = &SetupError{report.Step, errors.New(report.Err)}
	}
	return report, fds, err
}

func (j *Jail) socketsOf(report jailReport, fds []int) (*Sockets, error) {
	s := &Sockets{Redirected: report.Redirected}
	for i, kind := range report.Sockets {
		if err := s.add(kind, fds[i], j.pid); err != nil {
			return nil, &SetupError{"sockets", err}
		}
	}
	return s, nil
}

// Prepare has everything in the jail be as p will find it, without any privilege,
// and returns the ways out that were tried there, whether or not one led out. The
// error is an [*ExecError] where it is p's fault, else a [*SetupError].
func (j *Jail) Prepare(p Program) ([]Attempt, error) {
	j.program = p.Argv[0]
	if err := j.send(p); err != nil {
		return nil, &SetupError{"prepare the program", err}
	}
	f, err := j.answer("prepare the program")
	switch {
	case err != nil:
		return nil, err
	case f == nil || len(f.Attempts) == 0:
		return nil, &SetupError{"prepare the program", errors.New("the process that becomes it ended")}
	}
	return f.Attempts, nil
}

// Exec starts what was prepared. Its errors are those of Prepare.
func (j *Jail) Exec() error {
	if err := j.send(true); err != nil {
		return &SetupError{"start the program", err}
	}
	_, err := j.answer("start the program") // there is none where execve closed the socket
	return err
}

// answer waits for what the inside says of a step: nil where it has closed the
// socket.
func (j *Jail) answer(step string) (*jailFailure, error) {
	text, _, err := receiveAll(int(j.control.Fd()))
	switch {
	case err != nil:
		return nil, &SetupError{step, err}
	case len(text) == 0:
		return nil, nil
	}
	var f jailFailure
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, &SetupError{step, err}
	}
	switch {
	case f.Setup:
		return nil, &SetupError{step, errors.New(f.Problem)}
	case f.Problem != "":
		return nil, &ExecError{Name: j.program, Problem: f.Problem, Missing: f.Missing}
	}
	return &f, nil
}

// Signal sends the program a signal.
func (j *Jail) Signal(s syscall.Signal) { _ = syscall.Kill(j.pid, s) }

// Wait waits for the program's end. Each time it is stopped, and not ended,
// stopped is called, which may be nil.
func (j *Jail) Wait(stopped func()) (syscall.WaitStatus, error) {
	options := 0
	if stopped != nil {
		options = syscall.WUNTRACED
	}
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(j.pid, &status, options, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, err
		case status.Stopped():
			stopped()
		default:
			return status, nil
		}
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
	j.control.Close()
	j.Signal(syscall.SIGKILL)
	_, _ = j.Wait(nil)
}
