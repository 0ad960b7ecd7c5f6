package hostpaths

import (
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/internal/hostsockets"
	"github.com/egressd/egressd/internal/mounttable"
	"github.com/egressd/egressd/policy/file"
)

// Machine describes this machine to the package boundary: the user, egressd's own files, and sockets that lead out.
// workspace is a folder that a container of the project may write, or empty. engine is the socket of the container
// engine, c the configuration in force; both may be missing.
func Machine(workspace, engine string, c *config.Config) *boundary.Machine {
	p := &boundary.Machine{Home: os.Getenv("HOME"), UID: os.Getuid(), Workspace: workspace, Own: ownPaths(c), Programs: slices.Concat(OwnProgram(), programFolders(workspace), builders())}
	p.Doors = doors(c)
	mounts, _ := os.ReadFile("/proc/self/mountinfo") // of Linux alone
	p.Mounts = mounttable.Parse(string(mounts))
	p.Sockets = append(hostsockets.Of(os.Getuid(), os.Environ(), nil), os.TempDir()) // where the socket is that Compose asks in the engine's place
	if engine != "" {
		p.Sockets = append(p.Sockets, engine)
		askEngine(p, engine)
		_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers") // of version 2
		p.HostGroups = err != nil
	}
	return p
}

// ProjectMachine is [Machine] for what the files of a project ask for. A container of theirs takes no name and no label
// by which the user tells sandboxes.
func ProjectMachine(workspace, engine string, c *config.Config) *boundary.Machine {
	p := Machine(workspace, engine, c)
	p.Labels = []string{"egressd"} // of egressd attach --follow
	if c == nil {
		return p
	}
	for _, s := range c.File.Sandboxes {
		if s.Docker.Name != "" {
			p.Names = append(p.Names, s.Docker.Name)
		}
		if key, _, _ := strings.Cut(s.Docker.Label, "="); key != "" {
			p.Labels = append(p.Labels, key)
		}
	}
	return p
}

// builders returns the folder in which the tools of dev containers keep the Dockerfiles and scripts of their next build.
func builders() []string {
	who, err := user.Current()
	if err != nil {
		return nil
	}
	return []string{filepath.Join(os.TempDir(), "devcontainercli-"+who.Username)}
}

// programFolders are those of PATH. In those of the workspace its own programs lie, which the container may write.
func programFolders(workspace string) (all []string) {
	for _, folder := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(folder) && (workspace == "" || !IsOrHolds(workspace, folder)) {
			all = append(all, filepath.Clean(folder))
		}
	}
	return all
}

// ownPaths are folders and files of egressd: those of the usual places, and those that a configuration names.
func ownPaths(c *config.Config) (all []string) {
	all = append(all, "/run/egressd", "/var/lib/egressd", "/etc/egressd")
	for _, file := range config.SearchPath() {
		all = append(all, filepath.Dir(file))
	}
	add := func(path string, err error) {
		if err == nil && filepath.IsAbs(path) {
			all = append(all, path)
		}
	}
	log, err := config.DefaultAuditDir()
	add(filepath.Dir(log), err)
	if c != nil {
		add(filepath.Abs(c.Path))
		add(c.AuditDir())
		add(c.KeyDir())
		add(c.CADir())
		all = append(all, c.EnterFolders()...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// doors are those of all sandboxes of a configuration.
func doors(c *config.Config) (all []string) {
	if c == nil {
		return nil
	}
	for _, name := range c.EnterNames() {
		all = append(all, Doors(filepath.Clean(strings.TrimPrefix(name, file.UnixListener)))...)
	}
	return all
}

// Doors are what a container may mount of a socket at which sandboxes attach their networks: the socket, and its folder if nothing
// else is in it.
func Doors(socket string) []string {
	folder := filepath.Dir(socket)
	entries, err := os.ReadDir(folder)
	if err != nil || slices.ContainsFunc(entries, func(e os.DirEntry) bool { return filepath.Join(folder, e.Name()) != socket }) {
		return []string{socket}
	}
	return []string{socket, folder}
}
