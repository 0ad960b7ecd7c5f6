package containers

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/integrations/hostfiles"
	"github.com/egressd/egressd/internal/mounttable"
)

// AsMounted returns the description of a container with what the kernel has mounted in it, beside what the engine was asked
// to mount. A program that writes in a folder can put a link in the place of a source for a moment, when the engine mounts it.
// pid is a process of the container, doors the sources of mounts that egressd adds itself.
//
// If the kernel does not tell, AsMounted returns d unchanged. The engine may be on another machine.
func AsMounted(d boundary.Description, pid int, doors []string) boundary.Description {
	inside, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/mountinfo")
	outside, err2 := os.ReadFile("/proc/self/mountinfo")
	if err != nil || err2 != nil || pid == 0 {
		return d
	}
	table := mounttable.Parse(string(inside))
	more := unasked(d, table, mounttable.Parse(string(outside)), doors)
	d = maps.Clone(d)
	mounts, _ := d["Mounts"].([]any)
	d["Mounts"] = slices.Concat(mounts, more)
	config, ok := d["HostConfig"].(map[string]any)
	if !ok {
		return d
	}
	config = maps.Clone(config)
	if config["MaskedPaths"] == nil && config["ReadonlyPaths"] == nil { // Podman does not say
		config["MaskedPaths"], config["ReadonlyPaths"] = masked(table)
	}
	for kind, field := range map[string]string{"ipc": "IpcMode", "pid": "PidMode", "uts": "UTSMode"} { // nor that
		if its, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/" + kind); err == nil && isOwnNamespace(kind, its) {
			config[field] = "host"
		}
	}
	d["HostConfig"] = config
	return d
}

// isOwnNamespace reports whether a namespace is that of this process.
func isOwnNamespace(kind, is string) bool {
	own, err := os.Readlink("/proc/self/ns/" + kind)
	return err == nil && own == is
}

// masked are the parts of /proc and /sys that something covers, and those that are read-only.
func masked(inside []mounttable.Mount) (hidden, readOnly []any) {
	for _, m := range inside {
		switch {
		case !hostfiles.Under(m.Point, "/proc") && !hostfiles.Under(m.Point, "/sys"):
		case m.Kind == "tmpfs" || m.Kind == "devtmpfs":
			hidden = append(hidden, m.Point)
		case m.ReadOnly():
			readOnly = append(readOnly, m.Point)
		}
	}
	all, locked := boundary.SystemPaths()
	return append(hidden, missing(all)...), append(readOnly, missing(locked)...)
}

// missing are paths that this kernel does not have, so that nothing covers them.
func missing(paths []string) (all []any) {
	for _, path := range paths {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			all = append(all, path)
		}
	}
	return all
}

// unasked are mounts of files and folders of this machine that are where no mount of the description leads. Where a
// source leads by links now does not count, since that can change.
func unasked(d boundary.Description, inside, outside []mounttable.Mount, doors []string) (more []any) {
	asked, targets := asked(d, doors)
	for _, m := range inside {
		// The container's own root, groups and shared memory lie on this machine, too.
		ownMemory := m.Point == "/dev/shm" && m.Root == "/" && m.Kind == "tmpfs" && !targets[m.Point]
		ownGroups := hostfiles.Under(m.Point, "/sys/fs/cgroup") && strings.HasPrefix(m.Kind, "cgroup")
		if m.Point == "/" || ownGroups || ownMemory {
			continue
		}
		isAsked := func(at string) bool {
			return slices.ContainsFunc(asked, func(a askedMount) bool { return hostfiles.Under(at, a.path) && (a.writable || m.ReadOnly()) })
		}
		places, first := placesOf(m, outside)
		if slices.ContainsFunc(places[:first], isAsked) {
			continue
		}
		for _, at := range places {
			if !isAsked(at) {
				more = append(more, map[string]any{"Type": "bind", "Source": at, "Destination": m.Point, "RW": !m.ReadOnly()})
			}
		}
	}
	return more
}

// plainDevices are those that every container has. In a user namespace the engine mounts them from this machine.
const plainDevices = "/dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty"

// An askedMount is a file or folder that may be mounted.
type askedMount struct {
	path     string
	writable bool
}

// asked returns the mounts of a description, the mounts that every engine adds, and the targets of the former.
func asked(d boundary.Description, doors []string) (all []askedMount, targets map[string]bool) {
	targets = map[string]bool{}
	add := func(path string, writable bool) {
		if filepath.IsAbs(path) {
			all = append(all, askedMount{filepath.Clean(path), writable})
		}
	}
	for device := range strings.FieldsSeq(plainDevices) {
		add(device, true)
	}
	for _, name := range []string{"ResolvConfPath", "HostnamePath", "HostsPath"} {
		own, _ := d[name].(string)
		add(own, true)
		if name == "ResolvConfPath" && own != "" {
			add(filepath.Join(filepath.Dir(own), ".containerenv"), true) // of Podman
		}
	}
	mounts, _ := d["Mounts"].([]any)
	for _, one := range mounts {
		m, _ := one.(map[string]any)
		from, _ := m["Source"].(string)
		target, _ := m["Destination"].(string)
		writable, _ := m["RW"].(bool)
		add(from, writable)
		targets[path.Clean(target)] = true
	}
	for _, door := range doors {
		real := hostfiles.ResolveLinks(door)
		info, err := os.Stat(real)
		add(real, err == nil && info.Mode()&os.ModeSocket != 0)
	}
	return all, targets
}

// placesOf are the paths at which this process sees what a mount shows. One file system may be mounted twice, as that of WSL is at / and
// at /mnt/wslg/distro. The first paths are those by the mounts that are highest up: by these the engine has named a source.
func placesOf(m mounttable.Mount, outside []mounttable.Mount) (all []string, first int) {
	root := strings.TrimSuffix(m.Root, "//deleted")
	depth := func(o mounttable.Mount) int { return strings.Count(strings.TrimSuffix(o.Point, "/"), "/") }
	highest := 0
	for _, o := range slices.SortedStableFunc(slices.Values(outside), func(a, b mounttable.Mount) int { return depth(a) - depth(b) }) {
		rest, in := strings.CutPrefix(root, strings.TrimSuffix(o.Root, "/"))
		if o.Device != m.Device || !in || rest != "" && rest[0] != '/' {
			continue
		}
		if at := path.Join(o.Point, rest); !slices.Contains(all, at) {
			if all = append(all, at); len(all) == 1 {
				highest = depth(o)
			}
			if depth(o) == highest {
				first++
			}
		}
	}
	return all, first
}
