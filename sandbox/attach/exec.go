//go:build linux

package attach

import (
	"errors"
	"os"
	"strings"

	"github.com/egressd/egressd/internal/jailinit"
	"golang.org/x/sys/unix"
)

// Exec gives up the privileges by which this thread could leave its network, and executes the program. It
// returns only on failure: an [*jailinit.ExecError] if the program is at fault, else a [*jailinit.SetupError].
// left is called with each privilege that could not be given up.
func Exec(argv, env []string, left func(string)) error {
	path, err := jailinit.Find(jailinit.Program{Argv: argv, Env: env})
	if err != nil {
		return err
	}
	if err := jailinit.CloseDescriptors(); err != nil {
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

// networkCapabilities are those by which a program changes or leaves its network.
var networkCapabilities = [...]uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE, unix.CAP_SYS_MODULE, unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYS_RAWIO, unix.CAP_SETPCAP}

// giveUpCapabilities drops networkCapabilities. It keeps the others, by which the root user of a container
// installs packages or starts servers.
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

// Resolvers returns the name servers of this mount namespace, without its own loopback.
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
