package containers

import (
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
	more := unasked(d, mounttable.Parse(string(inside)), mounttable.Parse(string(outside)), doors)
	if len(more) == 0 {
		return d
	}
	d = maps.Clone(d)
	mounts, _ := d["Mounts"].([]any)
	d["Mounts"] = slices.Concat(mounts, more)
	return d
}

// unasked are mounts of files and folders of this machine that are where no mount of the description leads. Where a
// source leads by links now does not count, since that can change.
func unasked(d boundary.Description, inside, outside []mounttable.Mount, doors []string) (more []any) {
	asked, targets := asked(d, doors)
	asked = append(asked, strings.Fields(plainDevices)...)
	for _, m := range inside {
		// The container's own root, groups and shared memory lie on this machine, too.
		ownMemory := m.Point == "/dev/shm" && m.Root == "/" && m.Kind == "tmpfs" && !targets[m.Point]
		if m.Point == "/" || hostfiles.Under(m.Point, "/sys/fs/cgroup") || ownMemory {
			continue
		}
		for _, at := range placesOf(m, outside) {
			if !slices.ContainsFunc(asked, func(source string) bool { return hostfiles.Under(at, source) }) {
				more = append(more, map[string]any{"Type": "bind", "Source": at, "Destination": m.Point, "RW": !m.ReadOnly()})
			}
		}
	}
	return more
}

// plainDevices are those that every container has. In a user namespace the engine mounts them from this machine.
const plainDevices = "/dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty"

// asked are the files and folders that the engine was asked to mount, and those that it adds itself, and where the former are.
func asked(d boundary.Description, doors []string) (all []string, targets map[string]bool) {
	targets = map[string]bool{}
	for _, name := range []string{"ResolvConfPath", "HostnamePath", "HostsPath"} {
		own, _ := d[name].(string)
		all = append(all, own)
		if name == "ResolvConfPath" && own != "" {
			all = append(all, filepath.Join(filepath.Dir(own), ".containerenv")) // of Podman
		}
	}
	mounts, _ := d["Mounts"].([]any)
	for _, one := range mounts {
		m, _ := one.(map[string]any)
		source, _ := m["Source"].(string)
		target, _ := m["Destination"].(string)
		all, targets[path.Clean(target)] = append(all, source), true
	}
	for _, door := range doors {
		all = append(all, hostfiles.ResolveLinks(door))
	}
	all = slices.DeleteFunc(all, func(source string) bool { return !filepath.IsAbs(source) })
	for i := range all {
		all[i] = filepath.Clean(all[i])
	}
	return all, targets
}

// placesOf are the paths at which this process sees what a mount shows.
func placesOf(m mounttable.Mount, outside []mounttable.Mount) (all []string) {
	root := strings.TrimSuffix(m.Root, "//deleted")
	for _, o := range outside {
		rest, in := strings.CutPrefix(root, strings.TrimSuffix(o.Root, "/"))
		if o.Device != m.Device || !in || rest != "" && rest[0] != '/' {
			continue
		}
		if at := path.Join(o.Point, rest); !slices.Contains(all, at) {
			all = append(all, at)
		}
	}
	return all
}
