//go:build linux

package hostsockets

import (
	"bufio"
	"encoding/binary"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/egressd/egressd/internal/netlink"
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

func askForSockets() ([]boundSocket, error) {
	q := make([]byte, 24) // struct unix_diag_req
	q[0] = syscall.AF_UNIX
	binary.NativeEndian.PutUint32(q[4:], ^uint32(0)) // in every state
	binary.NativeEndian.PutUint32(q[12:], showName|showVFS)
	messages, err := netlink.Ask(netlinkSockDiag, sockDiagByFamily, syscall.NLM_F_DUMP, q)
	if err != nil {
		return nil, err
	}
	var all []boundSocket
	for _, m := range messages {
		if s, ok := boundIs(m); ok {
			all = append(all, s)
		}
	}
	return all, nil
}

// boundIs reads what the kernel says of one socket. It is false where that takes nothing
// from strangers, or has no file.
func boundIs(message []byte) (s boundSocket, ok bool) {
	if len(message) < messageSize || message[1] != syscall.SOCK_DGRAM && message[2] != stateListens {
		return s, false
	}
	all := netlink.Attributes(message, messageSize)
	s.path = strings.TrimRight(string(netlink.Find(all, attributeName)), "\x00")
	if file := netlink.Find(all, attributeVFS); len(file) >= 4 {
		s.inode = binary.NativeEndian.Uint32(file)
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
