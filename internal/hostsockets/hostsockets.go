// Package hostsockets finds the host sockets of a machine: Unix sockets that lead out of a sandbox which
// shares the machine's files. A process behind such a socket starts programs, connects or resolves names
// for its clients. The package opens none of them. Package jailinit handles devices.
//
//	for _, path := range hostsockets.Of(os.Getuid(), os.Environ(), kept) {
//		… hide it …
//	}
package hostsockets

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// known lists sockets and folders of sockets that lead out and that [listening] may miss: the listener is in another network
// namespace, as containers are, or starts later. $UID and $HOME stand for the user.
var known = [...]string{
	"/run/egressd",
	"/run/user/$UID/egressd",
	"/run/docker.sock",
	"/run/podman",
	"/run/containerd",
	"/run/k3s/containerd",
	"/run/crio",
	"/run/buildkit",
	"/run/libvirt",
	"/run/snapd.socket",
	"/run/snapd-snap.socket",
	"/run/multipass_socket",
	"/var/snap/multipass/common/multipass_socket",
	"/var/lib/lxd/unix.socket",
	"/var/snap/lxd/common/lxd/unix.socket",
	"/var/lib/incus/unix.socket",
	"/run/incus/unix.socket",
	"/nix/var/nix/daemon-socket",
	"/var/guix/daemon-socket",
	"/run/tailscale",
	"/run/cups/cups.sock",
	"/run/nslcd/socket",
	"/run/samba/winbindd/pipe",
	"/run/dbus/system_bus_socket",
	"/run/systemd/private",
	"/run/systemd/machine",
	"/run/screen",
	"/run/WSL",
	"/run/host-services",
	"/run/user/$UID/bus",
	"/run/user/$UID/dbus-1",
	"/run/user/$UID/at-spi",
	"/run/user/$UID/systemd",
	"/run/user/$UID/docker.sock",
	"/run/user/$UID/podman",
	"/run/user/$UID/containerd",
	"/run/user/$UID/containerd-rootless",
	"/run/user/$UID/buildkit",
	"/run/user/$UID/libvirt",
	"/run/user/$UID/gnupg",
	"/run/gnupg/user/$UID",
	"/run/user/$UID/keyring",
	"/run/user/$UID/gcr",
	"/run/user/$UID/openssh_agent",
	"/run/user/$UID/ssh-agent.socket",
	"/run/user/$UID/emacs",
	"/run/user/$UID/pulse",
	"/run/user/$UID/zellij",
	"/run/user/$UID/wezterm",
	"/tmp/tmux-$UID",
	"/tmp/emacs$UID",
	"$HOME/.docker/run",
	"$HOME/.docker/desktop",
	"$HOME/.rd",
	"$HOME/.colima",
	"$HOME/.lima",
	"$HOME/.orbstack/run",
	"$HOME/.screen",
}

// gpgSockets are those of GnuPG's daemons in its home, where they have no folder in
// /run. The agent rereads gpg-agent.conf, starts the pinentry and the scdaemon that it
// names, and scdaemon loads a library; the sandbox can write all of these files.
var gpgSockets = [...]string{"S.gpg-agent", "S.gpg-agent.extra", "S.gpg-agent.ssh", "S.gpg-agent.browser", "S.dirmngr", "S.keyboxd", "S.scdaemon", "S.uiserver"}

// variables name such sockets too, by a path or by an address of D-Bus or Docker. An agent for ssh loads libraries that its clients
// name (PKCS #11, FIDO), and starts the program that SSH_ASKPASS names.
var variables = [...]string{
	"DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS", "AT_SPI_BUS_ADDRESS", "DOCKER_HOST", "CONTAINER_HOST", "BUILDKIT_HOST", "CONTAINERD_ADDRESS", "NIX_DAEMON_SOCKET_PATH",
	"EGRESSD_ENTER", "TMUX", "NVIM", "NVIM_LISTEN_ADDRESS", "VSCODE_IPC_HOOK_CLI", "VSCODE_IPC_HOOK", "VSCODE_GIT_IPC_HANDLE", "REMOTE_CONTAINERS_IPC", "KITTY_LISTEN_ON", "WEZTERM_UNIX_SOCKET",
	"ALACRITTY_SOCKET", "I3SOCK", "SWAYSOCK", "NIRI_SOCKET", "PULSE_SERVER", "SESSION_MANAGER", "WATCHMAN_SOCK", "WSL_INTEROP",
	"SSH_AUTH_SOCK",
}

// Of returns the host sockets of the machine for a user with an environment. Not all of them
// exist. Every socket in this network namespace to which the user may connect is one,
// except for the harmless ones. A host socket that is, or holds, one of kept is left out.
func Of(uid int, environ, kept []string) []string {
	all := append(Named(uid, environ), listening(foldersOfSockets(uid, valueOf(environ, "HOME"))...)...)
	return slices.DeleteFunc(all, func(path string) bool {
		return slices.ContainsFunc(kept, func(k string) bool { return isOrHolds(path, k) })
	})
}

// Named returns the host sockets that are known, or that an environment names. Not all of them exist.
func Named(uid int, environ []string) []string {
	all := knownTo(uid, valueOf(environ, "HOME"))
	for _, v := range environ {
		if name, value, _ := strings.Cut(v, "="); slices.Contains(variables[:], name) {
			all = append(all, socketPaths(value)...)
		}
	}
	if gpg := valueOf(environ, "GNUPGHOME"); filepath.IsAbs(gpg) {
		all = append(all, gpgSocketsIn(gpg)...)
	}
	return all
}

// Leads reports whether what shares path with a sandbox shares a known host socket of a
// user's with it: whether path is one, holds one, or lies in one. It need not exist.
func Leads(path string, uid int, home string) bool {
	return slices.ContainsFunc(knownTo(uid, home), func(socket string) bool {
		return isOrHolds(path, socket) || isOrHolds(socket, path)
	})
}

func knownTo(uid int, home string) (all []string) {
	for _, path := range known {
		path = strings.ReplaceAll(path, "$UID", strconv.Itoa(uid))
		if rest, ok := strings.CutPrefix(path, "$HOME"); ok {
			if !filepath.IsAbs(home) {
				continue
			}
			path = filepath.Clean(home) + rest
		}
		all = append(all, path)
	}
	if filepath.IsAbs(home) {
		all = append(all, gpgSocketsIn(filepath.Join(home, ".gnupg"))...)
	}
	return all
}

func gpgSocketsIn(folder string) (paths []string) {
	for _, name := range gpgSockets {
		paths = append(paths, filepath.Join(folder, name))
	}
	return paths
}

// foldersOfSockets are where programs of a user keep sockets.
func foldersOfSockets(uid int, home string) []string {
	folders := []string{filepath.Join("/run/user", strconv.Itoa(uid)), "/run", "/tmp", "/var/tmp", "/dev/shm"}
	if filepath.IsAbs(home) {
		folders = append(folders, filepath.Join(home, ".ssh"), filepath.Clean(home))
	}
	if work, err := os.Getwd(); err == nil {
		folders = append(folders, work)
	}
	return folders
}

func valueOf(environ []string, name string) (value string) {
	for _, v := range environ {
		if rest, ok := strings.CutPrefix(v, name+"="); ok {
			value = rest
		}
	}
	return value
}

// isOrHolds reports whether path leads to the socket, under any name, or to a folder above the socket.
func isOrHolds(path, socket string) bool {
	path, socket = realPath(path), realPath(socket)
	return path == socket || strings.HasPrefix(socket, strings.TrimSuffix(path, "/")+"/")
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
		_, one, _ = cutScheme(one)
		one = strings.TrimPrefix(one, "//")
		if filepath.IsAbs(one) {
			paths = append(paths, filepath.Clean(one))
		}
	}
	return paths
}

// cutScheme takes off what says that a path follows.
func cutScheme(value string) (scheme, path string, found bool) {
	for _, scheme := range []string{"unix:path=", "unix:", "path=", "local/"} {
		if rest, ok := strings.CutPrefix(value, scheme); ok {
			if scheme == "local/" { // of X's session manager: local/HOST:@/path
				_, rest, _ = strings.Cut(rest, ":")
			}
			return scheme, rest, true
		}
	}
	return "", value, false
}
