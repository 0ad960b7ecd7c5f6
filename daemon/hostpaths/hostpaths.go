// Package hostpaths compares paths of this machine, and names the ones that a sandbox with access to its
// files must not reach or change: host sockets, the egressd program, the folders of policies.
package hostpaths

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hostsockets"
)

// HostSockets returns the sockets and devices of this machine that lead out of a sandbox, for the user and
// the environment of this process. It leaves out the paths in kept.
func HostSockets(kept []string) []string { return hostsockets.Of(os.Getuid(), os.Environ(), kept) }

// NamedSockets returns those of HostSockets that belong to services which programs know or the environment names.
func NamedSockets() []string { return hostsockets.Named(os.Getuid(), os.Environ()) }

// Real returns path as an absolute path without symbolic links. If nothing exists there, Real only makes path absolute.
func Real(path string) string {
	if all, err := filepath.Abs(path); err == nil {
		path = all
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return filepath.Clean(path)
}

// Reals returns [Real] of each path.
func Reals(paths []string) (all []string) {
	for _, path := range paths {
		all = append(all, Real(path))
	}
	return all
}

// linksMost is how many symbolic links Linux follows in one path.
const linksMost = 40

// OwnLink returns the first symbolic link on the way to path that a program of this user could have made, or "" if there is none.
// Of root that is each link but those in / and /var, such as /var/run.
func OwnLink(path string) string {
	at, rest := "/", path
	if !filepath.IsAbs(path) {
		work, err := syscall.Getwd() // without links, whatever PWD says
		if err != nil {
			return ""
		}
		at = work
	}
	for links := 0; rest != "" && links < linksMost; {
		name, more, _ := strings.Cut(strings.TrimLeft(rest, "/"), "/")
		next := filepath.Join(at, name) // at has no links, so that .. is what it says
		info, err := os.Lstat(next)
		if err != nil {
			return ""
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at, rest = next, more
			continue
		}
		if isOwnLink(at, info) {
			return next
		}
		target, err := os.Readlink(next)
		if err != nil {
			return next
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = target + "/" + more
		links++
	}
	return ""
}

func isOwnLink(folder string, link fs.FileInfo) bool {
	if os.Geteuid() == 0 {
		return folder != "/" && folder != "/var"
	}
	owner, ok := link.Sys().(*syscall.Stat_t)
	return !ok || int(owner.Uid) == os.Geteuid()
}

// IsOrHolds reports whether path is other or a folder above it. It follows symbolic links of both.
func IsOrHolds(path, other string) bool { return Within(Real(other), Real(path)) }

// Within reports whether path is folder or lies in it. It compares names and follows no links.
func Within(path, folder string) bool {
	rest, err := filepath.Rel(folder, path)
	return err == nil && rest != ".." && !strings.HasPrefix(rest, "../")
}

// OwnProgram returns the file of this program, or nothing if it was deleted or replaced. A sandbox must
// not change the file, because the next run starts it.
func OwnProgram() []string {
	path, err := os.Executable()
	if err != nil {
		return nil
	}
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	return []string{path}
}

// PolicyFolders returns the folders in which egressd looks for a policy file. A sandbox must not write
// there, because the next run would read its file. PolicyFolders makes those of the user if they are missing.
func PolicyFolders() (folders []string) {
	for _, file := range config.SearchPath() {
		folder := filepath.Dir(file)
		if !IsOrHolds("/etc", folder) {
			_ = os.MkdirAll(folder, 0o700) // if this user cannot make it, neither can the sandbox
		}
		if _, err := os.Stat(folder); err == nil {
			folders = append(folders, folder)
		}
	}
	return folders
}

// MayWrite returns an error if this process may neither write to a folder nor make it. It changes nothing.
func MayWrite(folder string) error {
	at := folder
	for {
		_, err := os.Stat(at)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			return err
		}
		at = filepath.Dir(at)
	}
	const mayMakeFiles = 2 | 1 // W_OK and X_OK
	if err := syscall.Access(at, mayMakeFiles); err != nil {
		return &fs.PathError{Op: "write to", Path: at, Err: err}
	}
	return nil
}

// MayChange reports whether this process's user may write to a file, or put another one in its place, now or after a change of
// a mode.
func MayChange(path string) bool {
	real := Real(path)
	for _, at := range []string{path, filepath.Dir(path), real, filepath.Dir(real)} {
		if MayTakeWrite(at) {
			return true
		}
	}
	return false
}

// MayTakeWrite reports whether this process's user may write to what is at path, or may change its mode to do so.
func MayTakeWrite(path string) bool {
	const write = 2 // W_OK
	var file syscall.Stat_t
	return syscall.Access(path, write) == nil || syscall.Stat(path, &file) == nil && int(file.Uid) == os.Geteuid()
}
