package jail

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/jailinit"
)

// removals remove hidden sockets in the working directory for the program. The kernel refuses that to the program (EBUSY), since a
// mount hides the socket. Outside of the jail nothing is mounted there, and removing the socket ends the mount in the jail.
//
// Whatever a program makes of it, the most that it gets is that one of these sockets is removed, which it could remove
// without egressd. Every other call goes on as if nobody had been asked.
type removals struct {
	listener int
	jail     string // the user namespace of the program, as /proc has it
	sockets  []removable
}

type removable struct {
	folder int // a descriptor of the folder, outside of the jail
	parent inodeID
	name   string
	file   inodeID
}

type inodeID struct{ device, inode uint64 }

func idOf(s *unix.Stat_t) inodeID { return inodeID{uint64(s.Dev), s.Ino} }

// answerRemovals takes over the listener of jail init.
func (j *Jail) answerRemovals(listener uint32, paths []string) error {
	there, err := unix.PidfdOpen(j.pid, 0)
	if err != nil {
		return fmt.Errorf("sockets in the working directory: %w", err)
	}
	defer unix.Close(there)
	r := &removals{}
	if r.listener, err = unix.PidfdGetfd(there, int(listener), 0); err != nil {
		return fmt.Errorf("sockets in the working directory: %w", err)
	}
	r.jail, _ = os.Readlink(fmt.Sprintf("/proc/%d/ns/user", j.pid))
	for _, path := range paths {
		if s, ok := removableAt(path); ok {
			r.sockets = append(r.sockets, s)
		}
	}
	go r.serve()
	return nil
}

func removableAt(path string) (r removable, ok bool) {
	folder, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return r, false
	}
	r = removable{folder: folder, name: filepath.Base(path)}
	var parent, file unix.Stat_t
	if unix.Fstat(folder, &parent) != nil || unix.Fstatat(folder, r.name, &file, unix.AT_SYMLINK_NOFOLLOW) != nil || file.Mode&unix.S_IFMT != unix.S_IFSOCK {
		unix.Close(folder)
		return r, false
	}
	r.parent, r.file = idOf(&parent), idOf(&file)
	return r, true
}

// Of linux/seccomp.h.
type (
	notice struct {
		id    uint64
		pid   uint32
		flags uint32
		call  int32
		arch  uint32
		at    uint64
		args  [6]uint64
	}
	noticeAnswer struct {
		id    uint64
		value int64
		errno int32
		flags uint32
	}
)

// serve answers until no process is left that could ask.
func (r *removals) serve() {
	defer func() {
		unix.Close(r.listener)
		for _, s := range r.sockets {
			unix.Close(s.folder)
		}
	}()
	calls := jailinit.RemovalCalls()
	const syncWakeUp = 1 // SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP, since Linux 6.6: who asks and who answers take turns on one processor
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(r.listener), unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS, syncWakeUp)
	runtime.LockOSThread() // and it ends with the goroutine
	for {
		ready := []unix.PollFd{{Fd: int32(r.listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		if ready[0].Revents&unix.POLLIN == 0 {
			if ready[0].Revents != 0 {
				return
			}
			continue
		}
		var n notice
		if r.control(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)) != 0 {
			continue // who asked is gone
		}
		a := noticeAnswer{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		if how, ok := calls[n.call]; ok && r.remove(&n, how) && !how.Replaces {
			a.flags = 0
		}
		r.control(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&a))
	}
}

func (r *removals) control(request uintptr, with unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(r.listener), request, uintptr(with))
	return errno
}

// remove removes a socket if the call is about one, and reports whether it did.
func (r *removals) remove(n *notice, how jailinit.Removal) bool {
	switch {
	case n.call == unix.SYS_UNLINKAT && n.args[2] != 0, n.call == unix.SYS_RENAMEAT2 && n.args[4] != 0:
		return false // of folders, and of two files in each other's place
	}
	path, ok := textAt(int(n.pid), n.args[how.Path])
	if !ok {
		return false
	}
	folder, name := filepath.Split(path)
	for _, s := range r.sockets {
		if s.name == name && r.isIn(n, how, folder, s.parent) {
			return s.remove()
		}
	}
	return false
}

// isIn reports whether the folder of a call is parent, as the caller sees it, which is still waiting and in no user namespace of
// its own.
func (r *removals) isIn(n *notice, how jailinit.Removal, folder string, parent inodeID) bool {
	process := fmt.Sprintf("/proc/%d/", n.pid)
	if own, err := os.Readlink(process + "ns/user"); err != nil || own != r.jail {
		return false
	}
	begin := process + "cwd"
	switch dir := int32(n.args[max(how.Path-1, 0)]); {
	case strings.HasPrefix(folder, "/"):
		begin = process + "root"
	case how.Folder && dir != unix.AT_FDCWD:
		begin = fmt.Sprintf("%sfd/%d", process, dir)
	}
	var file unix.Stat_t
	if unix.Stat(begin+"/"+folder, &file) != nil || idOf(&file) != parent {
		return false
	}
	return r.control(unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&n.id)) == 0
}

// remove removes the socket unless another file has taken its place.
func (s *removable) remove() bool {
	var file unix.Stat_t
	if unix.Fstatat(s.folder, s.name, &file, unix.AT_SYMLINK_NOFOLLOW) != nil || idOf(&file) != s.file {
		return false
	}
	return unix.Unlinkat(s.folder, s.name, 0) == nil
}

// textAt reads a C string of a process.
func textAt(pid int, at uint64) (string, bool) {
	const page = 4096
	var text [unix.PathMax]byte
	first := min(page-int(at%page), len(text)) // the next page may not be there
	from := []unix.RemoteIovec{{Base: uintptr(at), Len: first}, {Base: uintptr(at) + uintptr(first), Len: len(text) - first}}
	into := []unix.Iovec{{Base: &text[0], Len: uint64(len(text))}}
	n, err := unix.ProcessVMReadv(pid, into, from, 0)
	if err != nil {
		return "", false
	}
	end := bytes.IndexByte(text[:n], 0)
	if end < 0 {
		return "", false
	}
	return string(text[:end]), true
}
