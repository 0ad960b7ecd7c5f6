//go:build linux

package attach

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/pidfd"
)

// ErrHostFiles is for a process that sees the files of the host.
var ErrHostFiles = errors.New("the process sees the files of the host")

// maxBundle bounds a bundle of authorities in another process's files, in bytes.
const maxBundle = 8 << 20

// A bundle is a file of authorities that another process sees.
type bundle struct {
	path string
	text []byte
	at   unix.Stat_t
}

// CanTrust reports whether a process has files of its own with a bundle of authorities at one of paths, which
// [TrustInProcess] covers.
func CanTrust(p *pidfd.Process, paths []string) bool {
	files, err := mountNamespace(p)
	if err != nil {
		return false
	}
	defer files.Close()
	found := false
	err = within(files, func() error { found = len(readBundles(paths)) > 0; return nil })
	return err == nil && found
}

// TrustInProcess mounts a changed copy over each of paths that the process sees, in its mount namespace alone: programs that
// start there from now on read the copy. Nothing in the files of the container changes. add returns the text of a copy. The
// process may have put anything at a path: TrustInProcess reads plain files alone, and no more than maxBundle of each.
//
// TrustInProcess returns how many files it covered, and [ErrHostFiles] if the process has no mount namespace of its own.
func TrustInProcess(p *pidfd.Process, paths []string, add func(system []byte) []byte) (covered int, err error) {
	files, err := mountNamespace(p)
	if err != nil {
		return 0, err
	}
	defer files.Close()
	var all []bundle
	if err := within(files, func() error { all = readBundles(paths); return nil }); err != nil {
		return 0, fmt.Errorf("see the files of process %d: %w", p.PID, err)
	}
	for _, b := range all {
		text := add(b.text)
		if len(text) == len(b.text) { // it is there already
			covered++
			continue
		}
		if err := cover(files, b.path, text); err != nil {
			return covered, fmt.Errorf("mount a bundle over %s of process %d: %w", b.path, p.PID, err)
		}
		covered++
	}
	return covered, nil
}

// mountNamespace opens the mount namespace of a process. It refuses the namespace of this process and of PID 1.
func mountNamespace(p *pidfd.Process) (*os.File, error) {
	f, err := os.Open("/proc/" + strconv.Itoa(p.PID) + "/ns/mnt")
	if err == nil && p.Ended() { // else it still has that number
		err = unix.ESRCH
	}
	if err == nil {
		err = notOfHost(f, "mnt", ErrHostFiles)
	}
	if err != nil {
		if f != nil {
			f.Close()
		}
		return nil, err
	}
	return f, nil
}

// within runs do on a thread that sees the files of a mount namespace.
func within(files *os.File, do func() error) (err error) {
	onThread(func() {
		if err = unix.Unshare(unix.CLONE_FS); err != nil {
			return
		}
		if err = unix.Setns(int(files.Fd()), unix.CLONE_NEWNS); err != nil {
			return
		}
		err = do()
	})
	return err
}

// readBundles reads those of paths that are plain files, each file once.
func readBundles(paths []string) (all []bundle) {
	for _, path := range paths {
		fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS})
		if err != nil {
			continue
		}
		b := bundle{path: path}
		f := os.NewFile(uintptr(fd), path)
		if err := unix.Fstat(fd, &b.at); err == nil && b.at.Mode&unix.S_IFMT == unix.S_IFREG && b.at.Size <= maxBundle && !known(all, &b.at) {
			if b.text, err = io.ReadAll(io.LimitReader(f, maxBundle)); err == nil {
				all = append(all, b)
			}
		}
		f.Close()
	}
	return all
}

func known(all []bundle, at *unix.Stat_t) bool {
	for i := range all {
		if all[i].at.Dev == at.Dev && all[i].at.Ino == at.Ino {
			return true
		}
	}
	return false
}

// cover mounts a read-only file with a text over a path in a mount namespace. The file has no name then.
func cover(files *os.File, path string, text []byte) error {
	f, err := os.CreateTemp("", "egressd-ca-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // a file without a name cannot be mounted
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(0o444), f.Close()); err != nil {
		return err
	}
	copied, err := unix.OpenTree(unix.AT_FDCWD, f.Name(), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(copied)
	how := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC}
	if err := unix.MountSetattr(copied, "", unix.AT_EMPTY_PATH, &how); err != nil {
		return err
	}
	return within(files, func() error {
		return unix.MoveMount(copied, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_SYMLINKS)
	})
}
