//go:build linux

package hostsockets

import (
	"bufio"
	"encoding/binary"
	"io"
	"os"
	"strings"
	"syscall"
)

// A boundSocket takes connections, or datagrams.
type boundSocket struct {
	path  string // as bind(2) was given it: it may be relative, and lead elsewhere by now
	inode uint32 // of its file, the lower half; 0: not known
}

// boundSockets returns the sockets of this network namespace that have a file. Where the
// kernel has no sock_diag(7) for Unix sockets, their inodes are not known.
func boundSockets() []boundSocket {
	if sockets, err := askForSockets(); err == nil {
		return sockets
	}
	f, err := os.Open("/proc/self/net/unix")
	if err != nil {
		return nil // known ones are left
	}
	defer f.Close()
	return boundIn(f)
}

// Of linux/sock_diag.h and linux/unix_diag.h.
const (
	netlinkSockDiag  = 4
	sockDiagByFamily = 20
	showName         = 1 << 0 // UDIAG_SHOW_NAME
	showVFS          = 1 << 1 // UDIAG_SHOW_VFS
	attributeName    = 0      // UNIX_DIAG_NAME
	attributeVFS     = 1      // UNIX_DIAG_VFS: the inode comes first
	messageSize      = 16     // struct unix_diag_msg
	stateListens     = 10     // TCP_LISTEN
)

// askForSockets asks the kernel for all Unix sockets (sock_diag(7)).
func askForSockets() ([]boundSocket, error) {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, netlinkSockDiag)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(fd)
	q := make([]byte, syscall.NLMSG_HDRLEN+24) // struct unix_diag_req
	binary.NativeEndian.PutUint32(q, uint32(len(q)))
	binary.NativeEndian.PutUint16(q[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(q[6:], syscall.NLM_F_REQUEST|syscall.NLM_F_DUMP)
	body := q[syscall.NLMSG_HDRLEN:]
	body[0] = syscall.AF_UNIX
	binary.NativeEndian.PutUint32(body[4:], ^uint32(0)) // in every state
	binary.NativeEndian.PutUint32(body[12:], showName|showVFS)
	if err := syscall.Sendto(fd, q, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
		return nil, err
	}
	var all []boundSocket
	for answer := make([]byte, 64<<10); ; {
		n, _, err := syscall.Recvfrom(fd, answer, 0)
		if err != nil {
			return nil, err
		}
		messages, err := syscall.ParseNetlinkMessage(answer[:n])
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			switch m.Header.Type {
			case syscall.NLMSG_DONE:
				return all, nil
			case syscall.NLMSG_ERROR:
				return nil, syscall.EOPNOTSUPP
			}
			if s, ok := boundIs(m.Data); ok {
				all = append(all, s)
			}
		}
	}
}

// boundIs reads what the kernel says of one socket. It is false where that takes nothing
// from strangers, or has no file.
func boundIs(message []byte) (s boundSocket, ok bool) {
	if len(message) < messageSize || message[1] != syscall.SOCK_DGRAM && message[2] != stateListens {
		return s, false
	}
	for rest := message[messageSize:]; len(rest) >= syscall.SizeofRtAttr; {
		size := int(binary.NativeEndian.Uint16(rest))
		if size < syscall.SizeofRtAttr || size > len(rest) {
			break
		}
		switch value := rest[syscall.SizeofRtAttr:size]; binary.NativeEndian.Uint16(rest[2:]) {
		case attributeName:
			s.path = strings.TrimRight(string(value), "\x00")
		case attributeVFS:
			if len(value) >= 4 {
				s.inode = binary.NativeEndian.Uint32(value)
			}
		}
		rest = rest[min(len(rest), (size+3)&^3):]
	}
	return s, s.inode != 0
}

// boundIn reads the kernel's own table: the absolute paths of sockets that take
// connections, or datagrams.
func boundIn(table io.Reader) (all []boundSocket) {
	const kind, path = 4, 7
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		at := strings.Index(lines.Text(), " /") + 1 // spaces as they are
		if len(fields) > path && at > 0 && (fields[kind] == "0002" || fields[3] == "00010000") {
			all = append(all, boundSocket{path: lines.Text()[at:]})
		}
	}
	return all
}
