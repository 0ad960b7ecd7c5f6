package jail

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/jailinit"
)

// A deputy makes calls for the program that the kernel refuses to it:
//
//   - It removes hidden sockets in the working directory. The kernel refuses that (EBUSY), since a mount hides the socket. Outside of the
//     jail nothing is mounted there, and removing the socket ends the mount in the jail.
//   - It gives the terminal back to the process group that the program began in. That group has the number 0 in the jail (ESRCH). Since
//     bash and zsh do not even try, it also does so when all that took the terminal have ended, and nobody of the group that has it runs.
//
// A hostile program gets no more by it than without egressd: one of these sockets is removed, or that group has the terminal. Every
// other call goes on as if nobody had been asked.
type deputy struct {
	listener int
	jail     string // the user namespace of the program, as /proc has it
	sockets  []removable
	takers   []int // descriptors of processes that took the terminal
}

type removable struct {
	folder int // a descriptor of the folder, outside of the jail
	parent inodeID
	name   string
	file   inodeID
}

type inodeID struct{ device, inode uint64 }

func idOf(s *unix.Stat_t) inodeID { return inodeID{uint64(s.Dev), s.Ino} }

// deputize takes over the listener of jail init.
func (j *Jail) deputize(f *jailinit.Failure) error {
	listener, err := j.take([]uint32{f.Listener})
	if err != nil {
		return fmt.Errorf("listen for calls: %w", err)
	}
	d := &deputy{listener: listener[0]}
	d.jail, _ = os.Readlink(fmt.Sprintf("/proc/%d/ns/user", j.pid))
	for _, path := range f.Removable {
		if s, ok := removableAt(path); ok {
			d.sockets = append(d.sockets, s)
		}
	}
	go d.serve()
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
func (d *deputy) serve() {
	defer func() {
		jailinit.CloseAll(append(d.takers, d.listener))
		for _, s := range d.sockets {
			unix.Close(s.folder)
		}
	}()
	calls := jailinit.RemovalCalls()
	const syncWakeUp = 1 // SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP, since Linux 6.6: who asks and who answers take turns on one processor
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(d.listener), unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS, syncWakeUp)
	runtime.LockOSThread() // and it ends with the goroutine
	held := unix.Sigset_t{}
	held.Val[0] = 1 << (unix.SIGTTOU - 1) // which the kernel sends who gives the terminal away from the background
	_ = unix.PthreadSigmask(unix.SIG_BLOCK, &held, nil)
	for {
		ready := []unix.PollFd{{Fd: int32(d.listener), Events: unix.POLLIN}}
		for _, taker := range d.takers {
			ready = append(ready, unix.PollFd{Fd: int32(taker), Events: unix.POLLIN})
		}
		if _, err := unix.Poll(ready, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		d.forget(ready[1:])
		if ready[0].Revents&unix.POLLIN == 0 {
			if ready[0].Revents != 0 {
				return
			}
			continue
		}
		var n notice
		if d.control(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)) != 0 {
			continue // who asked is gone
		}
		a := noticeAnswer{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		how, removes := calls[n.call]
		switch {
		case removes && d.remove(&n, how) && !how.Replaces, n.call == jailinit.ForegroundCall() && d.giveBack(&n):
			a.flags = 0
		case n.call == jailinit.ForegroundCall():
			d.remember(&n)
		}
		d.control(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&a))
	}
}

func (d *deputy) control(request uintptr, with unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(d.listener), request, uintptr(with))
	return errno
}

// remove removes a socket if the call is about one, and reports whether it did.
func (d *deputy) remove(n *notice, how jailinit.Removal) bool {
	switch {
	case n.call == unix.SYS_UNLINKAT && n.args[2] != 0, n.call == unix.SYS_RENAMEAT2 && n.args[4] != 0:
		return false // of folders, and of two files in each other's place
	}
	path, ok := textAt(int(n.pid), n.args[how.Path])
	if !ok {
		return false
	}
	folder, name := filepath.Split(path)
	for _, s := range d.sockets {
		if s.name == name && d.isIn(n, how, folder, s.parent) {
			return s.remove()
		}
	}
	return false
}

// takersMost bounds the processes whose end the deputy waits for.
const takersMost = 64

// remember notes who gives the terminal to a group of the jail.
func (d *deputy) remember(n *notice) {
	if len(d.takers) == takersMost {
		return
	}
	if taker, err := unix.PidfdOpen(int(n.pid), 0); err == nil {
		d.takers = append(d.takers, taker)
	}
}

// forget drops those of the takers that have ended. After the last one it takes the terminal from a group of which nobody runs.
func (d *deputy) forget(takers []unix.PollFd) {
	had := len(d.takers)
	for _, t := range takers {
		if t.Revents != 0 {
			d.takers = slices.DeleteFunc(d.takers, func(fd int) bool { return fd == int(t.Fd) })
			unix.Close(int(t.Fd))
		}
	}
	if had == 0 || len(d.takers) > 0 {
		return
	}
	own, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(own)
	if group, err := unix.IoctlGetInt(own, unix.TIOCGPGRP); err == nil && !runs(int32(group)) {
		_ = unix.IoctlSetPointerInt(own, unix.TIOCSPGRP, unix.Getpgrp())
	}
}

// runs reports whether a process of a group has not ended.
func runs(group int32) bool {
	names, err := os.ReadDir("/proc")
	return err != nil || slices.ContainsFunc(names, func(e os.DirEntry) bool {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			return false
		}
		p, ok := processAt(pid)
		of, err := unix.Getpgid(pid)
		return ok && !p.dead && err == nil && of == int(group)
	})
}

// giveBack gives a terminal to this process's group, in which the program began, if the call is to give it to the group 0. It reports
// whether it did.
func (d *deputy) giveBack(n *notice) bool {
	var group [4]byte
	from := []unix.RemoteIovec{{Base: uintptr(n.args[2]), Len: len(group)}}
	if got, err := unix.ProcessVMReadv(int(n.pid), []unix.Iovec{{Base: &group[0], Len: uint64(len(group))}}, from, 0); err != nil || got != len(group) || group != [4]byte{} {
		return false
	}
	var of unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", n.pid, int32(n.args[0])), &of) != nil || d.control(unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&n.id)) != 0 {
		return false
	}
	own, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(own)
	if of.Rdev != controllingTerminal && of.Rdev != deviceOf(own) {
		return false
	}
	return unix.IoctlSetPointerInt(own, unix.TIOCSPGRP, unix.Getpgrp()) == nil
}

// controllingTerminal is the device /dev/tty, which is another terminal for each session.
const controllingTerminal = 5 << 8

// deviceOf returns the device of a terminal that was opened as /dev/tty.
func deviceOf(tty int) uint64 {
	var number uint32
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(tty), unix.TIOCGDEV, uintptr(unsafe.Pointer(&number))); errno != 0 {
		return 0
	}
	return uint64(number)
}

// isIn reports whether the folder of a call is parent, as the caller sees it, which is still waiting and in no user namespace of
// its own.
func (d *deputy) isIn(n *notice, how jailinit.Removal, folder string, parent inodeID) bool {
	process := fmt.Sprintf("/proc/%d/", n.pid)
	if own, err := os.Readlink(process + "ns/user"); err != nil || own != d.jail {
		return false
	}
	begin, ways := process+"cwd", []uint64{unix.RESOLVE_NO_SYMLINKS, unix.RESOLVE_BENEATH}
	switch dir := int32(n.args[max(how.Path-1, 0)]); {
	case strings.HasPrefix(folder, "/"):
		begin, ways = process+"root", []uint64{unix.RESOLVE_IN_ROOT}
	case how.Folder && dir != unix.AT_FDCWD:
		begin = fmt.Sprintf("%sfd/%d", process, dir)
	}
	file, ok := folderOf(begin, folder, ways)
	return ok && idOf(&file) == parent && d.control(unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&n.id)) == 0
}

// folderOf returns a folder that a process calls by a path from begin, a link in /proc. The path never leads out of the file system that
// the process sees: by a symbolic link, the program would have this process look up names of its choice outside, where an
// automounter asks servers for some.
func folderOf(begin, path string, ways []uint64) (file unix.Stat_t, ok bool) {
	from, err := unix.Open(begin, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return file, false
	}
	defer unix.Close(from)
	for _, way := range ways {
		fd, err := unix.Openat2(from, "./"+path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: way | unix.RESOLVE_NO_MAGICLINKS})
		if err != nil {
			continue
		}
		defer unix.Close(fd)
		return file, unix.Fstat(fd, &file) == nil
	}
	return file, false
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
