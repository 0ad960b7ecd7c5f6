package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// openedAsPath is O_PATH of open(2), which opens nothing but the name.
const openedAsPath = 0x200000

// openPlain opens a regular file. Nobody can exchange the file between the check of its type and the open.
func openPlain(path string) (f *os.File, err error) {
	fd, name, err := openName(path)
	if err != nil {
		return nil, err
	}
	defer name.Close()
	if err := stored(name, path); err != nil {
		return nil, err
	}
	const flags = os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOCTTY
	f, err = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), flags, 0)
	if errors.Is(err, fs.ErrNotExist) { // there is no /proc
		f, err = os.OpenFile(path, flags, 0)
	}
	if err != nil {
		return nil, named(err, path)
	}
	if err := stored(f, path); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// named has an error speak of the path that was asked for.
func named(err error, path string) error {
	if of, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: of.Op, Path: path, Err: of.Err}
	}
	return err
}

func openName(path string) (fd int, name *os.File, err error) {
	for {
		fd, err := syscall.Open(path, openedAsPath|syscall.O_CLOEXEC, 0)
		if err == nil {
			return fd, os.NewFile(uintptr(fd), path), nil
		}
		if err != syscall.EINTR {
			return -1, nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// stored checks that f is a plain file, and not one that the kernel makes up while it is
// read: that may have no end, or wait for something to happen.
func stored(f *os.File, path string) error {
	info, err := f.Stat()
	if err != nil {
		return named(err, path)
	}
	if !info.Mode().IsRegular() {
		return notPlain(path)
	}
	of, err := fileSystem(f)
	if err != nil {
		return &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	if slices.Contains(madeUp, of) {
		return fmt.Errorf("%s is a file of the kernel's, and no plain file", path)
	}
	return nil
}

// fileSystem returns the type of the file system that f is in, by statfs(2). It leaves f
// as it is, which f.Fd would not.
func fileSystem(f *os.File) (uint32, error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var of syscall.Statfs_t
	failed := syscall.EINTR
	err = conn.Control(func(fd uintptr) {
		for failed == syscall.EINTR {
			failed, _ = syscall.Fstatfs(int(fd), &of).(syscall.Errno) // 0 where there is no error
		}
	})
	if err == nil && failed != 0 {
		err = failed
	}
	return uint32(of.Type), err
}

// madeUp are the file systems that store nothing, by statfs(2).
var madeUp = []uint32{
	0x9fa0,     // proc
	0x62656572, // sysfs
	0x64626720, // debugfs
	0x74726163, // tracefs
	0x62656570, // configfs
	0x0027e0eb, // cgroup
	0x63677270, // cgroup2
	0x07655821, // resctrl
	0x73636673, // securityfs
	0xf97cff8c, // selinux
	0x43415d53, // smack
	0x5a3c69f0, // apparmor
	0x6165676c, // pstore
	0xde5e81e4, // efivarfs
	0xcafe4a11, // bpf
	0x42494e4d, // binfmt_misc
	0x65735543, // control of fuse
	0x19800202, // mqueue
	0x67596969, // rpc_pipefs
	0x6e667364, // nfsd
	0x00001cd1, // devpts
	0xabba1974, // xenfs
	0x6e736673, // nsfs
	0x50495045, // pipefs
	0x534f434b, // sockfs
	0x09041934, // anonymous inodes
	0x444d4142, // dma-buf
	0x50494446, // pidfs
}
