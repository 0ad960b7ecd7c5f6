package stage

import (
	"bufio"
	"io"
	"os"
	slash "path"
	"strconv"
	"strings"
)

// A mounted file system, or a part of one, as /proc/self/mountinfo has it.
type mounted struct {
	device string // major:minor
	root   string // the part, as a path in the file system
	point  string // where it is
}

// withAliases returns paths, and whatever other paths lead to the same files because
// a file system is mounted in more than one place. Paths that do not exist have none.
//
// It is about what can be read and written there. Names are safe: what is a mount
// point in one place the kernel lets nobody rename or remove in another.
func withAliases(paths []string) ([]string, error) {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	mounts, err := readMounts(f)
	if err != nil {
		return nil, err
	}
	all := append([]string(nil), paths...)
	for _, path := range paths {
		way, err := trail(path)
		if err != nil {
			continue
		}
		all = append(all, aliases(way[len(way)-1], mounts)...)
	}
	return all, nil
}

func readMounts(table io.Reader) (all []mounted, err error) {
	const device, root, point = 2, 3, 4
	lines := bufio.NewScanner(table)
	lines.Buffer(nil, 1<<20) // options of overlays are long
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > point {
			all = append(all, mounted{fields[device], unescape(fields[root]), unescape(fields[point])})
		}
	}
	return all, lines.Err()
}

// unescape reads the octal escapes of mountinfo.
func unescape(field string) string {
	var b strings.Builder
	for i := 0; i < len(field); i++ {
		if field[i] == '\\' && i+3 < len(field) {
			if n, err := strconv.ParseUint(field[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(field[i])
	}
	return b.String()
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
	inside := slash.Join(own.root, rest)
	for _, m := range mounts {
		rest, ok := below(inside, m.root)
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

// below returns what of path is behind folder, where it is that or lies in it.
func below(path, folder string) (rest string, ok bool) {
	if folder == "/" {
		return path, true
	}
	rest, ok = strings.CutPrefix(path, folder)
	return rest, ok && folder != "" && (rest == "" || rest[0] == '/')
}
