package jailinit

import (
	"encoding/binary"
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
// Report, which comes with the sockets, a Word that a [Program] has been written, and the word to go on, by a Failure.
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
		Held       []uint32 // descriptors of this process that could not come with it, to be taken from there before the word to go on
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
		// Served are descriptors of this process by which egressd is to serve the folders of Apart.Served, instead of all else. After
		// the word to go on comes another Failure.
		Served []uint32

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
	settled map[string]bool         // ids of the mounts, see closeLast; nil: all

	// Packets has Prepare begin connections and send datagrams to addresses for
	// documentation, without waiting for what comes of them.
	Packets bool
}

// WriteProgram writes a program to a file in memory, from which jail init reads it. A socket would take it in many small pieces: it
// has the authorities of the machine in it.
func WriteProgram(file int, p *Program) error {
	for text, at := Pack(p), 0; at < len(text); {
		n, err := unix.Pwrite(file, text[at:], int64(at))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		at += max(n, 0)
	}
	return nil
}

// readProgram is the other end of WriteProgram. The program shares the file's memory.
func readProgram(file int, p *Program) error {
	var is unix.Stat_t
	if err := unix.Fstat(file, &is); err != nil {
		return err
	}
	if is.Size == 0 || is.Size > maxProgram {
		return errMessage
	}
	text, err := unix.Mmap(file, 0, int(is.Size), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_POPULATE)
	if err != nil {
		return err
	}
	return Unpack(text, p)
}

// maxProgram bounds what WriteProgram writes, in bytes: most of it for a command, its environment and what is covered.
const maxProgram = 64 << 20

// maxMessage bounds a message on the socket.
const maxMessage = 4 << 20

// packet is what a packet of a message holds, in bytes: one that a socket takes at once.
const packet = 32 << 10

// Send sends a message of any length in packets.
func Send(fd int, text []byte) error {
	n := min(len(text), packet-lengthSize)
	for next := append(length(text), text[:n]...); len(next) > 0; next = text[:n] {
		if err := syscall.Sendmsg(fd, next, nil, nil, 0); err != nil {
			return err
		}
		text = text[n:]
		n = min(len(text), packet)
	}
	return nil
}

// length is what stands in front of a message.
func length(text []byte) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(len(text))) }

const lengthSize = 4

// descriptorsOfMessage is how many the kernel lets one message carry (SCM_MAX_FD).
const descriptorsOfMessage = 253

// Receive is the other end of Send. An end without a message is an empty
// one. Descriptors may come with its first packet.
func Receive(fd int) (text []byte, fds []int, err error) {
	rights := make([]byte, unix.CmsgSpace(descriptorsOfMessage*4))
	first := make([]byte, packet)
	n, oob, err := receivePacket(fd, first, rights)
	if err != nil || n == 0 {
		return nil, nil, err
	}
	fds = Descriptors(rights[:oob])
	if n < lengthSize {
		return nil, fds, errMessage
	}
	size := int(binary.NativeEndian.Uint32(first))
	if size > maxMessage || size < n-lengthSize {
		return nil, fds, errMessage
	}
	text = append(make([]byte, 0, size), first[lengthSize:n]...)
	for len(text) < size {
		n, _, err := receivePacket(fd, text[len(text):size], nil)
		if err != nil || n == 0 {
			return nil, fds, err
		}
		text = text[:len(text)+n]
	}
	return text, fds, nil
}

func receivePacket(fd int, into, rights []byte) (n, oob int, err error) {
	for {
		n, oob, _, _, err = syscall.Recvmsg(fd, into, rights, syscall.MSG_CMSG_CLOEXEC)
		if !hasToRepeat(err) {
			return n, oob, err
		}
	}
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
