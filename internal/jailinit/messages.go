package jailinit

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

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

// Messages on the control socket: a Plan is answered by a
// Report, which comes with the sockets, a [Program], and the word to go on, by a Failure.
type (
	// A Plan says what the network of a jail is like.
	Plan struct {
		IPv4, IPv6 []byte // 4 and 16 bytes; IPv6 is nil where there is to be none
		Redirect   bool
		HostPorts  []uint16
		Dialers    bool
		Again      bool     // the network may have been made before
		Interface  bool     // beside loopback, for programs that think that they are offline without one
		Root       bool     // the program keeps RootCapabilities
		Devices    []string // paths at which the program may have devices, beside those that all may
	}
	// A Report is what came of a Plan.
	Report struct {
		Sockets    []SocketKind // in the order of the descriptors that come with it
		Redirected bool
		Held       []uint32 // descriptors of this process that could not come with it, to be taken from there until a Program is sent
		Step, Err  string   // what went wrong, instead
	}
	// A Failure is what came of a Program, whether or not it failed.
	Failure struct {
		Tried []WayOut // what was tried, where nothing failed
		// Removable are hidden sockets that egressd is to remove for the program. If Foreground is set, egressd is to give the
		// terminal to the program's process group for it. Listener, a descriptor of this process, tells of both.
		Removable  []string
		Foreground bool
		Listener   uint32

		Problem string
		Missing bool
		Setup   bool // it is not the program's fault
	}
)

// A Program is what runs in a jail.
type Program struct {
	// Argv is the program, which is looked for in the PATH that Env has, and its
	// arguments.
	Argv, Env []string

	// Apart has the program see a file system of its own; nil: the host's.
	Apart *Apart

	// Hidden are files and folders that the program sees empty or not at all. Missing ones are skipped.
	Hidden []string

	// HostSockets are host sockets and folders of them. They are hidden like Hidden, but the program may rename
	// the hiding mounts.
	HostSockets []string
	// Services are those of HostSockets that the program cannot remove, wherever they are.
	Services []string

	// AgentSocket is a socket of egressd's own, which the program finds at Agent; empty: there is none.
	AgentSocket, Agent string

	// Covered are files whose content the program sees replaced, and which it cannot write. Missing ones are
	// skipped.
	Covered map[string][]byte
	// Fixed are files and folders that the program cannot change, replace or remove by any path. In a fixed
	// folder, all subfolders are fixed.
	Fixed []string

	// Nested lets the program make mount namespaces, as nested sandboxes do. Such a program can replace Fixed
	// files, and the folders above them, in every folder that it can write.
	Nested bool

	devices []string                // that were left, beside plain ones
	root    bool                    // see Plan
	hidden  map[string]hiddenSocket // the host sockets that were there, with what they were
	folders map[string]bool         // those of hidden that are folders
	pinned  []string                // folders that must stay where they are

	// Packets has Prepare begin connections and send datagrams to addresses for
	// documentation, without waiting for what comes of them.
	Packets bool
}

// maxMessage bounds a message: most of it for a command and its
// environment.
const maxMessage = 4 << 20

// Send sends a message of any length in packets that the socket takes.
func Send(fd int, text []byte) error {
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

// Receive is the other end of Send. An end without a message is an empty
// one. Descriptors may come with its first packet.
func Receive(fd int) (text []byte, fds []int, err error) {
	rights := make([]byte, unix.CmsgSpace(descriptorsOfMessage*4))
	for len(text) < maxMessage {
		size, _, err := syscall.Recvfrom(fd, nil, syscall.MSG_PEEK|syscall.MSG_TRUNC) // memory that is touched first costs more than a call
		if hasToRepeat(err) {
			continue
		}
		if err != nil || size == 0 {
			return nil, fds, err
		}
		packet := make([]byte, size)
		n, oob, _, _, err := syscall.Recvmsg(fd, packet, rights, syscall.MSG_CMSG_CLOEXEC)
		if hasToRepeat(err) {
			continue
		}
		if err != nil || n == 0 {
			return nil, fds, err
		}
		if oob > 0 {
			fds = append(fds, Descriptors(rights[:oob])...)
		}
		text = append(text, packet[1:n]...)
		if packet[0] == 0 {
			return text, fds, nil
		}
	}
	return nil, fds, errors.New("a message without end")
}

// hasToRepeat reports whether to receive again. ECONNRESET comes once, before what the other end said: it ended and had
// not read all that it was sent.
func hasToRepeat(err error) bool {
	return errors.Is(err, syscall.EINTR) || errors.Is(err, syscall.ECONNRESET)
}

// Descriptors are those that control messages of a Unix socket carry.
func Descriptors(rights []byte) (fds []int) {
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
