//go:build linux

package hostsockets

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// harmless are sockets, and folders of them, whose services read nothing that a sandbox
// can write, and start and load nothing: they look up users, take lines for a log, and
// pass commands to smart cards.
var harmless = [...]string{
	"/run/systemd/userdb",
	"/run/systemd/journal",
	"/run/pcscd",
}

// listening returns the paths of sockets in this network namespace that this user may
// connect to, or send to, but for the harmless ones.
//
// A socket keeps the name that bind(2) was given, while its file may have been renamed
// or linked since: OpenSSH does so with a master's. Such files are searched for by their
// inode, in the folder of the old name and in folders and what they hold.
func listening(folders ...string) (paths []string) {
	moved := map[uint32]bool{}
	for _, s := range boundSockets() {
		whole := filepath.IsAbs(s.path)
		if whole {
			paths = append(paths, s.path)
		}
		if s.inode == 0 || whole && isOnlyAt(s.path, s.inode) {
			continue
		}
		moved[s.inode] = true
		if whole {
			folders = append(folders, filepath.Dir(s.path))
		}
	}
	var closed []string
	if len(moved) > 0 {
		var found []string
		found, closed = socketsBelow(folders, moved)
		paths = append(paths, found...)
	}
	slices.Sort(paths)
	paths = slices.DeleteFunc(slices.Compact(paths), func(path string) bool { return isHarmless(path) || !mayConnect(path) })
	return append(paths, closed...)
}

// isOnlyAt reports whether a socket's file is at path and has no other name.
func isOnlyAt(path string, inode uint32) bool {
	file := socketAt(path)
	return file != nil && uint32(file.Ino) == inode && file.Nlink == 1
}

// entriesMost bounds the search of socketsBelow, which takes about 20 ms then.
const entriesMost = 20000

// socketsBelow searches folders and what they hold, the nearest levels first, for sockets
// that have one of inodes. It follows no links. closed are folders that it could not read, and that a program of this
// user could open again.
//
// The device is not compared: stat(2) and sock_diag(7) name different ones on btrfs and
// overlayfs. So a socket of another file system with the same number is found as well.
func socketsBelow(folders []string, inodes map[uint32]bool) (paths, closed []string) {
	seen := map[string]bool{}
	for left := entriesMost; len(folders) > 0 && left > 0; folders = folders[1:] {
		folder := folders[0]
		if seen[folder] {
			continue
		}
		seen[folder] = true
		entries, err := entriesOf(folder, left)
		if errors.Is(err, syscall.EACCES) && isOwn(folder) {
			closed = append(closed, folder)
		}
		left -= len(entries)
		for _, e := range entries {
			path := filepath.Join(folder, e.Name())
			switch e.Type() {
			case fs.ModeDir:
				folders = append(folders, path)
			case fs.ModeSocket:
				if file := socketAt(path); file != nil && inodes[uint32(file.Ino)] {
					paths = append(paths, path)
				}
			}
		}
	}
	return paths, closed
}

func entriesOf(folder string, most int) ([]os.DirEntry, error) {
	f, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, _ := f.ReadDir(most) // those before an error count
	return entries, nil
}

// socketAt returns what stat(2) says of a socket, or nil where there is none.
func socketAt(path string) *syscall.Stat_t {
	var file syscall.Stat_t
	if syscall.Lstat(path, &file) != nil || file.Mode&syscall.S_IFMT != syscall.S_IFSOCK {
		return nil
	}
	return &file
}

func isHarmless(path string) bool {
	return slices.ContainsFunc(harmless[:], func(h string) bool { return path == h || strings.HasPrefix(path, h+"/") })
}

// mayConnect reports whether a program of this user can come to connect to the socket at path: connect(2) asks for the right to
// write, and the owner of a socket, or of a folder above that is closed, may take that right.
func mayConnect(path string) bool {
	const write = 2 // W_OK
	var file syscall.Stat_t
	err := syscall.Lstat(path, &file)
	if err == syscall.EACCES {
		return isOwn(closedAbove(path))
	}
	return err == nil && file.Mode&syscall.S_IFMT == syscall.S_IFSOCK && (int(file.Uid) == os.Geteuid() || syscall.Access(path, write) == nil)
}

// closedAbove returns the folder above path that keeps this user from looking further.
func closedAbove(path string) string {
	for path != filepath.Dir(path) {
		path = filepath.Dir(path)
		if _, err := os.Lstat(path); err == nil {
			break
		}
	}
	return path
}

func isOwn(path string) bool {
	var file syscall.Stat_t
	return syscall.Lstat(path, &file) == nil && int(file.Uid) == os.Geteuid()
}
