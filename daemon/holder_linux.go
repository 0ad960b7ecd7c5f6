package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"

	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/sandbox"
)

// holderOf names the process that keeps a TCP listener from its address. It returns "" if err is not
// EADDRINUSE, or if this user may not see the process.
func holderOf(name string, err error) string {
	at, wrong := netip.ParseAddrPort(strings.TrimPrefix(name, file.TLSListener))
	if wrong != nil || !errors.Is(err, syscall.EADDRINUSE) {
		return ""
	}
	diag, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.NETLINK_INET_DIAG)
	if err != nil {
		return ""
	}
	programs, err := sandbox.NewPrograms(diag, os.Getpid())
	if err != nil {
		_ = syscall.Close(diag)
		return ""
	}
	defer programs.Close()
	p := programs.Listening(at)
	if p == nil {
		return ""
	}
	return fmt.Sprintf(": process %d has it (%s)", p.PID, printable.Text(p.Exe))
}
