package attach

import (
	"errors"
	"os"
	"strings"

	"github.com/egressd/egressd/internal/jailinit"
	"golang.org/x/sys/unix"
)

// Exec gives up what this thread could leave its network by, as far as it may, and
// becomes the program. It returns only where it could not: with an [*jailinit.ExecError] where
// that is the program's fault. left says what could not be given up.
func Exec(argv, env []string, left func(string)) error {
	path, err := jailinit.Find(jailinit.Program{Argv: argv, Env: env})
	if err != nil {
		return err
	}
	if err := jailinit.CloseDoors(); err != nil {
		return &jailinit.SetupError{Step: "close what leads out", Err: err}
	}
	if err := giveUpCapabilities(); err != nil {
		return &jailinit.SetupError{Step: "capabilities", Err: err}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return &jailinit.SetupError{Step: "no new privileges", Err: err}
	}
	if err := jailinit.FilterCalls(true); err != nil { // whatever made the sandbox keeps its files
		left("the filter of system calls: " + err.Error())
	}
	err = unix.Exec(path, argv, env)
	return &jailinit.ExecError{Name: path, Problem: err.Error(), Missing: errors.Is(err, unix.ENOENT)}
}

// networkCapabilities are those by which a program changes its network, or leaves
// it.
var networkCapabilities = [...]uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE, unix.CAP_SYS_MODULE, unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYS_RAWIO, unix.CAP_SETPCAP}

// giveUpCapabilities gives up those that lead out of the network. The rest, by which a container's
// root installs packages or starts servers, is what the container was given.
func giveUpCapabilities() error {
	for _, c := range networkCapabilities {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&head, &have[0]); err != nil {
		return err
	}
	for _, c := range networkCapabilities {
		bit := uint32(1) << (c % 32)
		set := &have[c/32]
		set.Effective &^= bit
		set.Permitted &^= bit
		set.Inheritable &^= bit
	}
	if err := unix.Capset(&head, &have[0]); err != nil {
		return err
	}
	for _, c := range networkCapabilities {
		_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_LOWER, c, 0, 0) // it went with the inheritable one
	}
	return nil
}

// Resolvers are the name servers of this mount namespace that are not its own
// loopback.
func Resolvers() (elsewhere []string) {
	text, err := os.ReadFile(jailinit.ResolvConf)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) > 1 && f[0] == "nameserver" && f[1] != "127.0.0.1" {
			elsewhere = append(elsewhere, f[1])
		}
	}
	return elsewhere
}
