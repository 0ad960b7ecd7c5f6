package main

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// doorsOfHost are sockets of the machine behind which somebody starts programs,
// connects or asks for names on behalf of who asks. $UID stands for the user.
var doorsOfHost = [...]string{
	"/run/egressd",
	"/run/user/$UID/egressd",
	"/run/docker.sock",
	"/run/podman",
	"/run/containerd",
	"/run/crio",
	"/run/buildkit",
	"/run/libvirt",
	"/run/snapd.socket",
	"/run/snapd-snap.socket",
	"/var/lib/lxd/unix.socket",
	"/var/snap/lxd/common/lxd/unix.socket",
	"/var/lib/incus/unix.socket",
	"/run/incus/unix.socket",
	"/run/tailscale",
	"/run/cups/cups.sock",
	"/run/nslcd/socket",
	"/run/samba/winbindd/pipe",
	"/run/dbus/system_bus_socket",
	"/run/systemd/private",
	"/run/systemd/machine",
	"/run/screen",
	"/run/user/$UID/bus",
	"/run/user/$UID/dbus-1",
	"/run/user/$UID/systemd",
	"/run/user/$UID/docker.sock",
	"/run/user/$UID/podman",
	"/run/user/$UID/containerd",
	"/run/user/$UID/containerd-rootless",
	"/run/user/$UID/buildkit",
	"/run/user/$UID/libvirt",
	"/run/user/$UID/emacs",
	"/tmp/tmux-$UID",
	"/dev/vhost-vsock",
}

// doorVariables name such sockets too: an address of D-Bus or Docker, or a path,
// with or without more behind a comma.
var doorVariables = [...]string{
	"DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS", "DOCKER_HOST", "CONTAINER_HOST", "BUILDKIT_HOST", "CONTAINERD_ADDRESS", enterVariable,
	"TMUX", "NVIM", "NVIM_LISTEN_ADDRESS", "VSCODE_IPC_HOOK_CLI", "VSCODE_GIT_IPC_HANDLE",
}

// doors returns the sockets of the machine through which a program would leave
// its sandbox, but for those that it may have. They need not exist.
func doors(uid int, environ, kept []string) []string {
	var all []string
	for _, path := range doorsOfHost {
		all = append(all, strings.ReplaceAll(path, "$UID", strconv.Itoa(uid)))
	}
	for _, v := range environ {
		if name, value, _ := strings.Cut(v, "="); slices.Contains(doorVariables[:], name) {
			all = append(all, socketPaths(value)...)
		}
	}
	return slices.DeleteFunc(all, func(path string) bool {
		return slices.ContainsFunc(kept, func(k string) bool { return isOrHolds(path, k) })
	})
}

// isOrHolds reports whether path is that of a socket, by whatever name, or of a
// folder above it.
func isOrHolds(path, socket string) bool {
	path, socket = realPath(path), realPath(socket)
	return path == socket || strings.HasPrefix(socket, path+"/")
}

func realPath(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return filepath.Clean(path)
}

// socketPaths finds the absolute paths in the value of a variable.
func socketPaths(value string) (paths []string) {
	for one := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == ';' || r == ',' }) {
		one = strings.TrimPrefix(strings.TrimPrefix(one, "unix:"), "path=")
		one = strings.TrimPrefix(one, "//")
		if filepath.IsAbs(one) {
			paths = append(paths, filepath.Clean(one))
		}
	}
	return paths
}

// ownProgram is the file of this program, which the next run is started from, or
// nothing where it is not there any more.
func ownProgram() []string {
	path, err := os.Executable()
	if err != nil {
		return nil
	}
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	return []string{path}
}
