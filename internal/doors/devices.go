package doors

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// plain are devices below /dev that programs use, and that lead nowhere: memory,
// terminals, graphics, sound, cameras, and those whose networks belong to a network
// namespace.
var plain = [...]string{
	"null", "zero", "full", "random", "urandom", "hwrng", "tty", "ptmx", "fuse", "net/tun", "kvm", "userfaultfd", "cpu_dma_latency", "udmabuf", "dma_heap/*",
	"dri/*", "snd/*", "video*", "media*", "nvidia*", "nvidia-caps/*", "kfd", "accel/*", "dxg", "mali*", "sgx_enclave", "sgx_provision",
}

// devices returns those below a folder, which ends with no slash, that who runs this may write, but for plain
// ones, and the terminals that it was started at: disks would be written past every
// mount, keyboards typed on (uinput, uhid, input), modems, adapters and virtual
// machines' sockets sent through.
func devices(folder string) (paths []string) {
	own := terminals()
	_ = filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && d != nil && d.IsDir():
			return fs.SkipDir
		case err != nil || path == folder:
			return nil
		}
		name := path[len(folder)+1:]
		switch {
		case d.IsDir() && slices.Contains(notDevices[:], name):
			return fs.SkipDir
		case d.Type()&fs.ModeDevice != 0 && !isPlain(name) && mayWrite(path) && !isOwn(path, own):
			paths = append(paths, path)
		}
		return nil
	})
	return paths
}

// notDevices are folders of /dev that have other things in them, or terminals.
var notDevices = [...]string{"fd", "shm", "mqueue", "hugepages", "pts"}

// isOwn reports whether a device is one of own, or null.
func isOwn(path string, own map[uint64]bool) bool {
	var file syscall.Stat_t
	return syscall.Lstat(path, &file) != nil || own[file.Rdev] || file.Rdev == devNull
}

const devNull = 1<<8 | 3

// isPlain reports whether a device has one of the names of plain ones, by its path
// below /dev: what their * stands for has no slash in it.
func isPlain(name string) bool {
	return slices.ContainsFunc(plain[:], func(pattern string) bool {
		begin, open := strings.CutSuffix(pattern, "*")
		rest, ok := strings.CutPrefix(name, begin)
		return ok && (rest == "" || open && !strings.Contains(rest, "/"))
	})
}

// terminals are the devices that the standard streams are.
func terminals() map[uint64]bool {
	own := map[uint64]bool{}
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		info, err := f.Stat()
		if err != nil {
			continue
		}
		if file, ok := info.Sys().(*syscall.Stat_t); ok && file.Mode&syscall.S_IFMT == syscall.S_IFCHR {
			own[file.Rdev] = true
		}
	}
	return own
}
