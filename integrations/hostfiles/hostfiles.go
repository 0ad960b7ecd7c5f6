// Package hostfiles tells which paths of a machine lead out of a container that mounts them, and who could
// change what a path leads to.
package hostfiles

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/egressd/egressd/internal/hostsockets"
)

// Leads reports whether a folder or file of this machine, by its absolute path, is or holds
// what gets a container out that has it: a socket behind which somebody acts for who
// asks, a device, other processes, or what an engine keeps of containers. Links
// on the way count as what they lead to now.
func Leads(path, home string) bool {
	paths := []string{filepath.Clean(path)}
	if real := ResolveLinks(path); real != paths[0] {
		paths = append(paths, real)
	}
	for _, p := range paths {
		if strings.HasSuffix(p, ".sock") || strings.HasSuffix(p, ".socket") || Under(p, "/dev") && !Under(p, "/dev/shm") ||
			Under(p, "/proc") || Under(p, "/sys") || holdsEngine(p) || hostsockets.Leads(p, os.Getuid(), home) {
			return true
		}
	}
	return false
}

// engineState are folders in which an engine keeps the files of containers, and how they are started.
var engineState = []string{"/var/lib/docker", "/var/lib/containerd", "/var/lib/containers"}

func holdsEngine(path string) bool {
	for _, folder := range engineState {
		if Under(path, folder) || Under(folder, path) {
			return true
		}
	}
	return false
}

// Under reports whether path is folder, or lies in it.
func Under(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

// InFolder reports whether path is folder, or lies in it, by name or by what links lead to now.
func InFolder(path, folder string) bool {
	return Under(path, folder) || Under(ResolveLinks(path), ResolveLinks(folder))
}

// ResolveLinks is an absolute path without links, as far as it exists. A link that leads nowhere yet counts as where it leads.
func ResolveLinks(path string) string {
	links := 40
	return resolveLinks(path, &links)
}

func resolveLinks(path string, links *int) string {
	rest := ""
	for {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			return filepath.Join(real, rest)
		}
		parent := filepath.Dir(path)
		if target, err := os.Readlink(path); err == nil && *links > 0 {
			*links--
			if !filepath.IsAbs(target) {
				target = filepath.Join(resolveLinks(parent, links), target)
			}
			return filepath.Join(resolveLinks(target, links), rest)
		}
		if parent == path {
			return filepath.Join(path, rest)
		}
		path, rest = parent, filepath.Join(filepath.Base(path), rest)
	}
}

// Climbs reports whether programs differ on where .. leads in an absolute path. Some take it off the name with the folder before it,
// others let the kernel follow that folder, which may be a link. A folder below writable can become one.
func Climbs(path, writable string) bool {
	at := "/"
	for name := range strings.SplitSeq(path, "/") {
		if name != ".." {
			at = filepath.Join(at, name)
			continue
		}
		real, folder := ResolveLinks(at), ResolveLinks(writable)
		if filepath.Dir(real) != ResolveLinks(filepath.Dir(at)) || writable != "" && real != folder && Under(real, folder) {
			return true
		}
		at = filepath.Dir(at)
	}
	return false
}

// ThroughFolder reports whether somebody who writes in folder decides what path leads to: it, a
// folder above it, or a link on the way lies in there. It says so, too, of more links than a kernel follows.
func ThroughFolder(path, folder string) bool {
	links := 40
	return throughLinks(filepath.Clean(path), ResolveLinks(folder), &links)
}

func throughLinks(path, folder string, links *int) bool {
	for ; path != filepath.Dir(path); path = filepath.Dir(path) {
		parent := ResolveLinks(filepath.Dir(path))
		if Under(parent, folder) {
			return true
		}
		target, err := os.Readlink(path)
		if err != nil {
			continue
		}
		if *links--; *links < 0 {
			return true
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(parent, target)
		}
		if throughLinks(filepath.Clean(target), folder, links) {
			return true
		}
	}
	return false
}
