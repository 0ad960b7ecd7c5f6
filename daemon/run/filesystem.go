package run

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/sandbox/jail"
)

// hostServices are variables by which programs find services of the host that
// --fs takes away: without them they do not look for these.
var hostServices = []string{sshAgent, "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "CONTAINER_HOST", "WAYLAND_DISPLAY", "GPG_AGENT_INFO"}

// fileSystem is the one that --fs asks for, and the repository of its working directory; or nil.
func (o *Options) fileSystem() (*jail.Apart, *repository, error) {
	if !o.Apart {
		return nil, nil, nil
	}
	work, err := os.Getwd()
	if err == nil {
		work, err = filepath.EvalSymlinks(work)
	}
	if err != nil {
		return nil, nil, hint.Failed(fmt.Errorf("--fs: the working directory: %w", err), "cd to a folder that exists")
	}
	home, err := filepath.EvalSymlinks(os.Getenv("HOME"))
	if info, missing := os.Stat(home); err != nil || missing != nil || !info.IsDir() || home == "/" || !filepath.IsAbs(home) { // /dev/null is one of some services
		home = ""
	}
	if kept := heldBy(work, home); kept != "" {
		return nil, nil, hint.Misused(fmt.Errorf("--fs: the working directory, which the program can change, is %s, and %s would be in it", work, kept), "cd to the folder of a project")
	}
	var shared []string
	for _, name := range o.Share {
		if err := refuseLinks("--share", name); err != nil {
			return nil, nil, err
		}
		path, err := filepath.Abs(name)
		if err == nil {
			path, err = filepath.EvalSymlinks(path)
		}
		if err != nil {
			return nil, nil, hint.Misused(fmt.Errorf("--share %s: %w", name, err), "give a path that exists")
		}
		if kept := heldBy(path, home); kept != "" {
			return nil, nil, hint.Misused(fmt.Errorf("--share %s: %s would be in it", name, kept), "--share for a folder in it")
		}
		shared = append(shared, path)
	}
	git, err := repositoryOf(work, home, shared)
	if err == nil {
		err = git.refuseElsewhere(home)
	}
	if err == nil && len(git.folders) > 0 {
		err = needsFUSE(git.folders[0])
	}
	if err != nil {
		return nil, nil, err
	}
	return &jail.Apart{Work: work, Home: home, Private: privateFolders(), Shared: slices.Concat(shared, git.objects), Served: git.folders}, git, nil
}

// needsFUSE returns an error where egressd cannot serve the repository of a working directory.
func needsFUSE(repository string) error {
	if err := syscall.Access("/dev/fuse", 2|4); err != nil {
		return hint.Failed(fmt.Errorf("--fs: egressd serves %s to the program by /dev/fuse: %w", repository, err), "modprobe fuse; in a container, give it the device /dev/fuse")
	}
	return nil
}

// refuseLinks returns an error if a path leads by a link that a program of an earlier run could have made: such a link may
// lead to what that program was not given.
func refuseLinks(flag, path string) error {
	link := hostpaths.OwnLink(path)
	if link == "" {
		return nil
	}
	return hint.Misused(fmt.Errorf("%s %s: %s is a symbolic link, which a program of an earlier run could have made", flag, path, link),
		flag+" "+shell.Word(hostpaths.Real(path))+", if you mean that")
}

// heldBy returns what a folder that the program can change must not hold, if path holds it.
func heldBy(path, home string) string {
	for _, kept := range []string{home, "/etc", "/usr", "/proc", "/dev", "/sys", "/run", "/tmp", "/var"} {
		if kept != "" && hostpaths.Within(kept, path) {
			return kept
		}
	}
	return ""
}

// changeable reports whether the program can change what lies at path, which has no symbolic links, with --fs.
func (r *runner) changeable(path string) bool {
	return hostpaths.Within(path, r.apart.Work) || slices.ContainsFunc(slices.Concat(r.apart.Shared, r.apart.Served), func(folder string) bool { return hostpaths.Within(path, folder) })
}

// mayNest reports whether the program may make mount namespaces: it can replace
// what egressd keeps in folders that it can write, and with --fs these are the
// working directory and what is shared. The last element of a path need not exist.
func (r *runner) mayNest(kept []string) bool {
	if r.options.Nested || r.apart == nil {
		return r.options.Nested
	}
	return !slices.ContainsFunc(kept, func(path string) bool { return r.changeable(hostpaths.Real(path)) })
}

// nesting holds programs that start sandboxes of their own, by name, and what such a sandbox is called. These need mounts.
var nesting = map[string]string{
	"codex": "the sandbox that codex runs commands in", "bwrap": "bubblewrap", "srt": "srt", "podman": "podman", "flatpak": "flatpak",
}

// sayNesting says ahead what to type for a program whose own sandbox the filter of system calls would refuse.
func (r *runner) sayNesting(nested bool) {
	what := nesting[filepath.Base(r.argv[0])]
	if nested || what == "" || slices.ContainsFunc(r.argv, func(arg string) bool { return strings.Contains(arg, "danger") }) {
		return // as with --sandbox danger-full-access
	}
	fmt.Fprintf(r.talk, "egressd: warning: %s needs mounts, which egressd run refuses\n", what)
	hint.Sayf(r.talk, "egressd run --fs, where only the working directory can be changed; or egressd run --nested, with which the program can replace the policy of later runs")
}

const sshAgent = "SSH_AUTH_SOCK"

// privateFolders are those in which programs keep what is nobody else's, and
// services their sockets.
func privateFolders() []jail.Private {
	const everybody = os.ModeSticky | 0o777
	all := []jail.Private{{Path: "/tmp", Mode: everybody}, {Path: "/var/tmp", Mode: everybody}, {Path: "/dev/shm", Mode: everybody}, {Path: "/run", Mode: 0o755}, {Path: "/var/run", Mode: 0o755}}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		all = append(all, jail.Private{Path: filepath.Clean(dir), Mode: 0o700, Make: true})
	}
	return all
}
