package folder

import (
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/recovered"
)

// Serve serves a folder, whose path has no symbolic links, where the descriptor device of /dev/fuse is mounted. It takes the descriptor
// over. It returns as soon as the kernel has begun, and serves until the last mount is gone.
func Serve(path string, area *Area, device int) error {
	v, err := open(path, area)
	if err != nil {
		unix.Close(device)
		return err
	}
	s, err := fuse.NewServer(v, "/dev/fd/"+strconv.Itoa(device), &fuse.MountOptions{
		Name: "egressd", SingleThreaded: true, DisableXAttrs: true, DisableReadDirPlus: true, DisableSplice: true,
		Logger: log.New(io.Discard, "", 0), // of calls whose caller is gone
		PanicHandler: func(why any) fuse.Status {
			defer recovered.Log("serving a folder", nil)
			panic(why)
		},
	})
	if err != nil {
		unix.Close(v.root)
		return fmt.Errorf("serve %s: %w", path, err)
	}
	go s.Serve()
	return nil
}

// A view is a folder that is served. The library calls its methods, of which the comments say only what FUSE does not, one at a time.
type view struct {
	fuse.RawFileSystem // what is not done here: ENOSYS

	root    int // a descriptor
	entries map[uint64]*inode
	last    uint64            // number of an inode
	handles map[uint64]*inode // of what is open, by descriptors
	made    map[string]int    // what the sandbox made and is [Own], by its path: descriptors
}

// An inode is a file or folder that the kernel knows. Its number is never given again.
type inode struct {
	number uint64
	parent *inode // nil for the root
	name   string
	area   *Area
	file   fileKey
	known  uint64 // how often the kernel was told, and has not forgotten it
	below  map[string]*inode
	open   []int // descriptors
}

type fileKey struct{ device, inode uint64 }

func keyOf(s *syscall.Stat_t) fileKey { return fileKey{uint64(s.Dev), s.Ino} }

func open(path string, area *Area) (*view, error) {
	root, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: path, Err: err}
	}
	var is syscall.Stat_t
	if err := syscall.Fstat(root, &is); err != nil {
		unix.Close(root)
		return nil, os.NewSyscallError("fstat", err)
	}
	top := &inode{number: fuse.FUSE_ROOT_ID, area: area, file: keyOf(&is), known: 1, below: map[string]*inode{}}
	return &view{RawFileSystem: fuse.NewDefaultRawFileSystem(), root: root, entries: map[uint64]*inode{top.number: top}, last: top.number, handles: map[uint64]*inode{}, made: map[string]int{}}, nil
}

// OnUnmount is called after the last call.
func (v *view) OnUnmount() {
	for fd := range v.handles {
		unix.Close(int(fd))
	}
	for _, fd := range v.made {
		unix.Close(fd)
	}
	unix.Close(v.root)
}

func (n *inode) path() string {
	if n.parent == nil {
		return "."
	}
	return n.parent.path() + "/" + n.name
}

// look opens what is at a path below a folder, to look at it.
func look(folder int, path string) (fd int, is syscall.Stat_t, status fuse.Status) {
	fd, err := unix.Openat2(folder, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	if err == nil {
		if err = syscall.Fstat(fd, &is); err != nil {
			unix.Close(fd)
		}
	}
	return fd, is, fuse.ToStatus(err)
}

// reach opens an inode to look at it. ESTALE has the kernel look the path up again: another file is there by now.
func (v *view) reach(number uint64) (n *inode, fd int, is syscall.Stat_t, status fuse.Status) {
	if n = v.entries[number]; n == nil {
		return nil, -1, is, fuse.Status(unix.ESTALE)
	}
	fd, is, status = look(v.root, n.path())
	if status == fuse.OK && keyOf(&is) != n.file || status == fuse.ENOENT {
		if status == fuse.OK {
			unix.Close(fd)
		}
		return n, -1, is, fuse.Status(unix.ESTALE)
	}
	return n, fd, is, status
}

// byDescriptor is a path by which a file that is open to be looked at can be opened and changed.
func byDescriptor(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// How long the kernel need not ask again: for a folder, and what an open file or a folder is like. It asks for a file by each path, since
// git compares what files are like to see whether the host changed them.
const (
	folderKnown = time.Second
	stateKnown  = 10 * time.Millisecond
)

func isFolder(is *syscall.Stat_t) bool { return is.Mode&unix.S_IFMT == unix.S_IFDIR }

func stateTimeout(is *syscall.Stat_t) time.Duration {
	if isFolder(is) {
		return folderKnown
	}
	return stateKnown
}

// told has the kernel know what is under a name.
func (v *view) told(parent *inode, name string, is *syscall.Stat_t, out *fuse.EntryOut) *inode {
	n := parent.below[name]
	if n == nil || n.file != keyOf(is) {
		v.last++
		n = &inode{number: v.last, parent: parent, name: name, area: parent.area.of(name, keyOf(is)), file: keyOf(is), below: map[string]*inode{}}
		v.entries[n.number], parent.below[name] = n, n
	}
	n.known++
	out.NodeId = n.number
	out.FromStat(is)
	out.SetAttrTimeout(stateTimeout(is))
	if isFolder(is) { // each call looks whether another one is there by now
		out.SetEntryTimeout(folderKnown)
	}
	return n
}

// mayMake reports whether the sandbox may put something under a name, or take it away.
func (v *view) mayMake(parent *inode, name string) fuse.Status {
	if area := parent.area.in(name); area.Right == Free {
		return fuse.OK
	}
	return fuse.EROFS
}

// isOwn reports whether the sandbox made the file that is at a path.
func (v *view) isOwn(path string, file fileKey) bool {
	fd, ok := v.made[path]
	var is syscall.Stat_t
	return ok && syscall.Fstat(fd, &is) == nil && keyOf(&is) == file
}

func (v *view) mayChange(n *inode) bool {
	switch n.area.Right {
	case Free:
		return true
	case Own:
		return v.isOwn(n.path(), n.file)
	}
	return false
}

func (v *view) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	parent, folder, _, status := v.reach(h.NodeId)
	if status != fuse.OK {
		return status
	}
	defer unix.Close(folder)
	fd, is, status := look(folder, name)
	if status != fuse.OK {
		return status
	}
	unix.Close(fd)
	v.told(parent, name, &is, out)
	return fuse.OK
}

func (v *view) Forget(number, times uint64) {
	n := v.entries[number]
	if n == nil || n.parent == nil {
		return
	}
	if n.known -= min(times, n.known); n.known > 0 {
		return
	}
	delete(v.entries, number)
	if n.parent.below[n.name] == n {
		delete(n.parent.below, n.name)
	}
}

// GetAttr also answers for an open file whose name was removed, or given to another file.
func (v *view) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	n, fd, is, status := v.reach(in.NodeId)
	switch {
	case status == fuse.OK:
		unix.Close(fd)
	case n != nil && len(n.open) > 0:
		status = fuse.ToStatus(syscall.Fstat(n.open[0], &is))
	}
	out.FromStat(&is)
	out.SetTimeout(stateTimeout(&is))
	return status
}

func (v *view) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	n := v.entries[in.NodeId]
	if n == nil {
		return fuse.Status(unix.ESTALE)
	}
	if !v.mayChange(n) {
		return fuse.EROFS
	}
	var path string
	if handle, ok := in.GetFh(); ok && v.handles[handle] == n {
		path = byDescriptor(int(handle))
	} else {
		_, fd, is, status := v.reach(in.NodeId)
		if status != fuse.OK {
			return status
		}
		defer unix.Close(fd)
		if kind := is.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
			return fuse.EPERM
		}
		path = byDescriptor(fd)
	}
	if err := change(path, &in.SetAttrInCommon); err != nil {
		return fuse.ToStatus(err)
	}
	var is syscall.Stat_t
	err := syscall.Stat(path, &is)
	out.FromStat(&is)
	return fuse.ToStatus(err)
}

func change(path string, in *fuse.SetAttrInCommon) error {
	if mode, ok := in.GetMode(); ok {
		if err := unix.Chmod(path, mode&0o3777); err != nil { // no program that runs as its owner
			return err
		}
	}
	uid, setUID := in.GetUID()
	gid, setGID := in.GetGID()
	if setUID || setGID {
		owner, group := -1, -1
		if setUID {
			owner = int(uid)
		}
		if setGID {
			group = int(gid)
		}
		if err := unix.Chown(path, owner, group); err != nil {
			return err
		}
	}
	if size, ok := in.GetSize(); ok {
		if err := unix.Truncate(path, int64(size)); err != nil {
			return err
		}
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_OMIT}}
	if t, ok := in.GetATime(); ok {
		times[0] = unix.NsecToTimespec(t.UnixNano())
	}
	if t, ok := in.GetMTime(); ok {
		times[1] = unix.NsecToTimespec(t.UnixNano())
	}
	if times[0].Nsec == unix.UTIME_OMIT && times[1].Nsec == unix.UTIME_OMIT {
		return nil
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, times, 0)
}

// Access reports whether an inode may be read, written or executed, where the kernel does not judge by its mode.
func (v *view) Access(_ <-chan struct{}, in *fuse.AccessIn) fuse.Status {
	n, fd, _, status := v.reach(in.NodeId)
	if status != fuse.OK {
		return status
	}
	defer unix.Close(fd)
	if in.Mask&unix.W_OK != 0 && !v.mayChange(n) && !hasFree(n.area) {
		return fuse.EROFS
	}
	return fuse.ToStatus(unix.Access(byDescriptor(fd), in.Mask))
}

// hasFree reports whether names in a folder may be made.
func hasFree(a *Area) bool { return a.Names != nil }

// Readlink reads a symbolic link, which the sandbox follows.
func (v *view) Readlink(_ <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	_, fd, _, status := v.reach(h.NodeId)
	if status != fuse.OK {
		return nil, status
	}
	defer unix.Close(fd)
	text := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", text)
	return text[:max(n, 0)], fuse.ToStatus(err)
}

// Symlink makes none: the host would follow it.
func (v *view) Symlink(<-chan struct{}, *fuse.InHeader, string, string, *fuse.EntryOut) fuse.Status {
	return fuse.EPERM
}

// Link makes no hard link: its names could be of different areas.
func (v *view) Link(<-chan struct{}, *fuse.LinkIn, string, *fuse.EntryOut) fuse.Status {
	return fuse.EPERM
}

func (v *view) Mknod(<-chan struct{}, *fuse.MknodIn, string, *fuse.EntryOut) fuse.Status {
	return fuse.EPERM
}

// owned gives what was made the mode and owner that the caller asked for: egressd has its own umask.
func owned(fd int, mode uint32, caller *fuse.Caller) error {
	var is unix.Stat_t
	path := byDescriptor(fd)
	if err := unix.Fstat(fd, &is); err != nil {
		return err
	}
	if is.Uid != caller.Uid {
		group := int(caller.Gid)
		if is.Mode&unix.S_ISGID != 0 {
			group = -1 // that of the folder
		}
		if err := unix.Chown(path, int(caller.Uid), group); err != nil {
			return err
		}
	}
	return unix.Chmod(path, mode&0o777|is.Mode&unix.S_ISGID)
}

func (v *view) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	parent, fd, _, status := v.reach(in.NodeId)
	if status != fuse.OK {
		return status
	}
	defer unix.Close(fd)
	if status := v.mayMake(parent, name); status != fuse.OK {
		return status
	}
	if err := unix.Mkdirat(fd, name, 0o700); err != nil {
		return fuse.ToStatus(err)
	}
	made, is, status := look(fd, name)
	if status != fuse.OK {
		return status
	}
	defer unix.Close(made)
	err := owned(made, in.Mode, &in.Caller)
	if err == nil {
		err = syscall.Fstat(made, &is)
	}
	if err == nil {
		v.told(parent, name, &is, out)
	}
	return fuse.ToStatus(err)
}

func (v *view) Unlink(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return v.remove(h.NodeId, name, 0)
}

func (v *view) Rmdir(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return v.remove(h.NodeId, name, unix.AT_REMOVEDIR)
}

func (v *view) remove(number uint64, name string, how int) fuse.Status {
	parent, fd, _, status := v.reach(number)
	if status != fuse.OK {
		return status
	}
	defer unix.Close(fd)
	if parent.area.in(name).Right == Own {
		return v.removeOwn(parent.path()+"/"+name, fd, name)
	}
	if status := v.mayMake(parent, name); status != fuse.OK {
		return status
	}
	return fuse.ToStatus(unix.Unlinkat(fd, name, how))
}

// removeOwn removes a file that the sandbox made. A program of the host that honours the lock puts no other file in its
// place before.
func (v *view) removeOwn(path string, folder int, name string) fuse.Status {
	at, is, status := look(v.root, path)
	if status != fuse.OK {
		return status
	}
	unix.Close(at)
	if !v.isOwn(path, keyOf(&is)) {
		return fuse.EROFS
	}
	if err := unix.Unlinkat(folder, name, 0); err != nil {
		return fuse.ToStatus(err)
	}
	v.disown(path)
	return fuse.OK
}

func (v *view) disown(path string) {
	if fd, ok := v.made[path]; ok {
		unix.Close(fd)
		delete(v.made, path)
	}
}

// own notes that the sandbox made a file. While the file is open, no other one gets its number.
func (v *view) own(path string, file fileKey) {
	v.disown(path)
	fd, is, status := look(v.root, path)
	if status == fuse.OK && keyOf(&is) == file {
		v.made[path] = fd
	} else if status == fuse.OK {
		unix.Close(fd)
	}
}

// Rename renames what is free to a name that is free.
func (v *view) Rename(_ <-chan struct{}, in *fuse.RenameIn, old, name string) fuse.Status {
	from, fromFD, _, status := v.reach(in.NodeId)
	if status != fuse.OK {
		return status
	}
	defer unix.Close(fromFD)
	to, toFD, _, status := v.reach(in.Newdir)
	if status != fuse.OK {
		return status
	}
	defer unix.Close(toFD)
	a, b := from.area.in(old), to.area.in(name)
	switch {
	case a.Right != Free || b.Right != Free || a.Names != nil || b.Names != nil:
		return fuse.EROFS
	case in.Flags&^(unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE) != 0:
		return fuse.EINVAL
	}
	if err := unix.Renameat2(fromFD, old, toFD, name, uint(in.Flags)); err != nil {
		return fuse.ToStatus(err)
	}
	moved, other := from.below[old], to.below[name]
	delete(from.below, old)
	delete(to.below, name)
	put := func(n, parent *inode, name string) {
		if n != nil {
			n.parent, n.name = parent, name
			parent.below[name] = n
		}
	}
	put(moved, to, name)
	if in.Flags&unix.RENAME_EXCHANGE != 0 {
		put(other, from, old)
	}
	return fuse.OK
}

// openMost bounds the open files of the sandbox, which are descriptors of this process.
const openMost = 1024

// passed are the flags of open(2) that matter to the file.
const passed = unix.O_ACCMODE | unix.O_APPEND | unix.O_SYNC | unix.O_DSYNC | unix.O_TRUNC

func (v *view) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n, fd, is, status := v.reach(in.NodeId)
	if status != fuse.OK {
		return status
	}
	defer unix.Close(fd)
	switch {
	case is.Mode&unix.S_IFMT != unix.S_IFREG:
		return fuse.EPERM
	case in.Flags&unix.O_ACCMODE != unix.O_RDONLY && !v.mayChange(n):
		return fuse.EROFS
	}
	out.OpenFlags = fuse.FOPEN_NOFLUSH
	return v.opened(n, byDescriptor(fd), in.Flags&passed, &out.Fh)
}

func (v *view) opened(n *inode, path string, flags uint32, handle *uint64) fuse.Status {
	if len(v.handles) >= openMost {
		return fuse.Status(unix.ENFILE)
	}
	fd, err := unix.Open(path, int(flags)|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return fuse.ToStatus(err)
	}
	v.hold(n, fd, handle)
	return fuse.OK
}

func (v *view) hold(n *inode, fd int, handle *uint64) {
	v.handles[uint64(fd)], n.open = n, append(n.open, fd)
	*handle = uint64(fd)
}

// Create makes a file, or opens the one that is there.
func (v *view) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	parent, folder, _, status := v.reach(in.NodeId)
	if status != fuse.OK {
		return status
	}
	defer unix.Close(folder)
	own := parent.area.in(name).Right == Own
	if status := v.mayMake(parent, name); status != fuse.OK && !own {
		return status
	}
	if len(v.handles) >= openMost {
		return fuse.Status(unix.ENFILE)
	}
	fd, err := unix.Openat(folder, name, int(in.Flags&passed)|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err == unix.EEXIST && in.Flags&unix.O_EXCL == 0 {
		return fuse.Status(unix.ESTALE) // the host made it meanwhile; the kernel looks again
	}
	if err != nil {
		return fuse.ToStatus(err)
	}
	var is syscall.Stat_t
	if err = owned(fd, in.Mode, &in.Caller); err == nil {
		err = syscall.Fstat(fd, &is)
	}
	if err != nil {
		unix.Close(fd)
		return fuse.ToStatus(err)
	}
	if own {
		v.own(parent.path()+"/"+name, keyOf(&is))
	}
	out.OpenFlags = fuse.FOPEN_NOFLUSH
	v.hold(v.told(parent, name, &is, &out.EntryOut), fd, &out.Fh)
	return fuse.OK
}

func (v *view) Read(_ <-chan struct{}, in *fuse.ReadIn, into []byte) (fuse.ReadResult, fuse.Status) {
	if v.handles[in.Fh] == nil {
		return nil, fuse.EBADF
	}
	n, err := unix.Pread(int(in.Fh), into, int64(in.Offset))
	return fuse.ReadResultData(into[:max(n, 0)]), fuse.ToStatus(err)
}

func (v *view) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	if v.handles[in.Fh] == nil {
		return 0, fuse.EBADF
	}
	n, err := unix.Pwrite(int(in.Fh), data, int64(in.Offset))
	return uint32(max(n, 0)), fuse.ToStatus(err)
}

func (v *view) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	if v.handles[in.Fh] == nil {
		return fuse.EBADF
	}
	return fuse.ToStatus(unix.Fsync(int(in.Fh)))
}

func (v *view) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return v.Fsync(cancel, in)
}

func (v *view) Release(_ <-chan struct{}, in *fuse.ReleaseIn) { v.ReleaseDir(in) }

func (v *view) ReleaseDir(in *fuse.ReleaseIn) {
	n := v.handles[in.Fh]
	if n == nil {
		return
	}
	delete(v.handles, in.Fh)
	n.open = slices.DeleteFunc(n.open, func(fd int) bool { return fd == int(in.Fh) })
	unix.Close(int(in.Fh))
}

func (v *view) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n, fd, _, status := v.reach(in.NodeId)
	if status != fuse.OK {
		return status
	}
	defer unix.Close(fd)
	return v.opened(n, byDescriptor(fd), unix.O_RDONLY|unix.O_DIRECTORY, &out.Fh)
}

func (v *view) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	if v.handles[in.Fh] == nil {
		return fuse.EBADF
	}
	if _, err := unix.Seek(int(in.Fh), int64(in.Offset), io.SeekStart); err != nil {
		return fuse.ToStatus(err)
	}
	buffer := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(int(in.Fh), buffer)
		if err != nil || n == 0 {
			return fuse.ToStatus(err)
		}
		for rest := buffer[:n]; len(rest) > 0; {
			var e fuse.DirEntry
			rest = rest[e.Parse(rest):]
			if !out.AddDirEntry(e) {
				return fuse.OK
			}
		}
	}
}

func (v *view) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	var is syscall.Statfs_t
	err := syscall.Fstatfs(v.root, &is)
	out.FromStatfsT(&is)
	return fuse.ToStatus(err)
}
