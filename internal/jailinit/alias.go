package jailinit

import (
	"os"
	slash "path"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/mounttable"
	"golang.org/x/sys/unix"
)

// A mounted file system, or a part of one, as /proc/self/mountinfo has it.
type mounted struct {
	id     string
	device string // major:minor
	root   string // the part, as a path in the file system
	point  string // where it is
	opens  bool   // devices
	kind   string // of file system

	readOnly bool
	asks     bool // for each name that is looked up in it, an automounter outside is asked: autofs, but for single mounts
}

// withAliases returns paths, and whatever other paths lead to the same files because
// a file system is mounted in more than one place. Paths that do not exist have none.
//
// It is about what can be read and written there. Names are safe: what is a mount
// point in one place the kernel lets nobody rename or remove in another.
func withAliases(paths []string, mounts []mounted) []string {
	all := append([]string(nil), paths...)
	seen := plain{}
	for _, path := range paths {
		way, err := seen.trail(path)
		if err != nil {
			continue
		}
		all = append(all, aliases(way[len(way)-1], mounts)...)
	}
	return all
}

// A mountTable is the mounts of this thread, which are read beforehand.
type mountTable struct {
	fd  int
	all []mounted
	err error
}

func openMounts() *mountTable {
	t := new(mountTable)
	if t.fd, t.err = unix.Open("/proc/thread-self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0); t.err == nil {
		t.load()
	}
	return t
}

func (t *mountTable) load() {
	var text []byte
	for chunk := make([]byte, 16<<10); ; {
		n, err := unix.Pread(t.fd, chunk, int64(len(text)))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			t.err = err
			break
		}
		text = append(text, chunk[:n]...)
	}
	t.all = readMounts(string(text))
}

// read returns the mounts as they are now. It is called once.
func (t *mountTable) read() ([]mounted, error) {
	if t.err != nil {
		return nil, t.err
	}
	defer unix.Close(t.fd)
	// POLLPRI: mounts have changed since the table was opened (proc(5)).
	poll := []unix.PollFd{{Fd: int32(t.fd), Events: unix.POLLPRI}}
	if n, err := unix.Poll(poll, 0); n != 0 || err != nil {
		t.load()
	}
	return t.all, t.err
}

func readMounts(table string) (all []mounted) {
	for _, m := range mounttable.Parse(table) {
		asks := m.Kind == "autofs" && slices.Contains(m.Super, "indirect")
		all = append(all, mounted{m.ID, m.Device, m.Root, m.Point, !slices.Contains(m.Options, "nodev"), m.Kind, m.ReadOnly(), asks})
	}
	return all
}

// aliases returns the other paths of a file that is at path, which leads through no
// links.
func aliases(path string, mounts []mounted) (all []string) {
	var own mounted
	for _, m := range mounts {
		if _, ok := below(path, m.point); ok && len(m.point) >= len(own.point) {
			own = m // of several in one place the last one counts
		}
	}
	rest, ok := below(path, own.point)
	if !ok {
		return nil
	}
	file, err := os.Lstat(path)
	if err != nil {
		return nil
	}
	under := slash.Join(own.root, rest)
	for _, m := range mounts {
		rest, ok := below(under, m.root)
		if !ok || m.device != own.device {
			continue
		}
		other := slash.Join(m.point, rest)
		if same, err := os.Lstat(other); other != path && err == nil && os.SameFile(file, same) {
			all = append(all, other)
		}
	}
	return all
}

// below returns the rest of path after folder, if path is folder or lies in it.
func below(path, folder string) (rest string, ok bool) {
	if folder == "/" {
		return path, true
	}
	rest, ok = strings.CutPrefix(path, folder)
	return rest, ok && folder != "" && (rest == "" || rest[0] == '/')
}
