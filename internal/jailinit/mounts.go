package jailinit

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	ResolvConf     = "/etc/resolv.conf"
	resolvConfLead = "# the name server of egressd run\n" // of that file in a jail
)

// facts are files without which a program gets along. The kernel mounts nothing over a removed file that is
// there as a mount alone.
var facts = [...]string{ResolvConf, "/etc/hosts"}

// helpers are sockets of the host by which the C library has others resolve names
// for it, past the jail's name server. Inside they are not there.
var helpers = [...]string{
	"/run/systemd/resolve/io.systemd.Resolve",
	"/run/systemd/resolve/io.systemd.Resolve.Monitor",
	"/run/nscd/socket",
	"/var/run/nscd/socket",
	"/run/avahi-daemon/socket",
	"/run/sssd/nss",
	"/var/lib/sss/pipes/nss",
}

// hideHelpers has the sandbox ask the jail's name server alone.
func hideHelpers() error {
	for _, path := range helpers {
		if err := hide(path); err != nil {
			return &SetupError{"hide " + path, err}
		}
	}
	return nil
}

// rearrange makes the program's mounts, which no process outside the jail sees. Afterwards p holds every path
// of each hidden and fixed file.
func (s *setup) rearrange(plan Plan, p *Program) error {
	agent := -1
	if p.AgentSocket != "" {
		tree, err := cloneTree(p.AgentSocket) // before its folder is hidden
		if err != nil {
			return fmt.Errorf("socket of ssh keys: %w", err)
		}
		agent = tree
	}
	if p.Apart != nil {
		if err := p.Apart.set(append(slices.Collect(maps.Keys(p.Covered)), ResolvConf), p.root, s.awaitServed); err != nil {
			return err
		}
	}
	kept := slices.Concat(p.Hidden, p.Fixed)
	mounts, err := s.mounts.read()
	if err != nil {
		return fmt.Errorf("find what is hidden and fixed in other places: %w", err)
	}
	if err := ownQueues(mounts); err != nil {
		return fmt.Errorf("hide message queues: %w", err)
	}
	if err := keepKernel(mounts, p.Nested); err != nil {
		return fmt.Errorf("keep the kernel's settings as they are: %w", err)
	}
	if err := closeAutomounts(mounts); err != nil {
		return fmt.Errorf("close automounted folders: %w", err)
	}
	if err := closeLateMounts(mounts); err != nil {
		return fmt.Errorf("close the devices of what was mounted meanwhile: %w", err)
	}
	p.Hidden, p.Fixed = withAliases(p.Hidden, mounts), withAliases(p.Fixed, mounts)
	dir, err := workingDirectory()
	if err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}
	for _, path := range p.Fixed {
		err := pin(path)
		if errors.Is(err, unix.ENOENT) && p.Apart != nil {
			continue // the host has it where the program sees another folder
		}
		if err != nil {
			return fmt.Errorf("keep %s as it is: %w", path, err)
		}
	}
	scratch, err := hideAll(p.Hidden)
	if err != nil {
		return err
	}
	if err := p.hideSockets(); err != nil {
		return err
	}
	covered := maps.Clone(p.Covered)
	if covered == nil {
		covered = map[string][]byte{}
	}
	// Every name server address leads to the jail's name server, so resolv.conf may be missing.
	covered[ResolvConf] = fmt.Appendf([]byte(resolvConfLead), "nameserver %d.%d.%d.%d\noptions edns0\n%s", plan.IPv4[0], plan.IPv4[1], plan.IPv4[2], plan.IPv4[3], ownSearch())
	for path, text := range covered {
		err := cover(scratch, path, text)
		if errors.Is(err, unix.ENOENT) && slices.Contains(facts[:], path) {
			delete(p.Covered, path)
			continue
		}
		if err != nil {
			return fmt.Errorf("cover %s: %w", path, err)
		}
	}
	if err := closeScratch(scratch); err != nil {
		return err
	}
	if err := sealKernel(); err != nil {
		return err
	}
	if err := p.hideSockets(); err != nil { // those that were made meanwhile in the place of others
		return err
	}
	if agent >= 0 {
		if err := moveTree(agent, p.Agent); err != nil {
			return fmt.Errorf("socket of ssh keys: %w", err)
		}
	}
	if p.pinned, err = pinFolders(kept); err != nil {
		return err
	}
	if err := p.closeLast(); err != nil {
		return fmt.Errorf("close the devices of what was mounted last: %w", err)
	}
	return reenter(dir)
}

// ownSearch keeps the C library from looking names up in the domain of the machine's name, if the machine has a search list:
// the jail's name server goes by that list.
func ownSearch() string {
	text, _ := os.ReadFile(ResolvConf)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "search") || strings.HasPrefix(line, "domain") {
			return "search .\n"
		}
	}
	return ""
}

// A hiddenSocket tells a socket from one that is made later under its path. No other file gets its inode number while it is open.
type hiddenSocket struct {
	fd   int // O_PATH, until execve
	file fileID
}

func openHidden(path string) (f hiddenSocket, err error) {
	var file unix.Stat_t
	if f.fd, err = unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
		return f, err
	}
	if err := unix.Fstat(f.fd, &file); err != nil {
		unix.Close(f.fd)
		return f, err
	}
	f.file = fileID{uint64(file.Dev), file.Ino}
	return f, nil
}

// isAt reports whether the socket is at path, where nothing hides it. A file that is being removed has no link left; the kernel
// takes away what is mounted on it a moment before its name.
func (f hiddenSocket) isAt(path string) bool {
	var file unix.Stat_t
	return unix.Stat(path, &file) == nil && file.Nlink > 0 && f.file == fileID{uint64(file.Dev), file.Ino}
}

// hideSockets hides the host sockets that are there and visible. Other programs may remove them, and make new ones, at any
// time: a socket that is made later is seen by the program.
func (p *Program) hideSockets() error {
	if p.hidden == nil {
		p.hidden = map[string]hiddenSocket{}
	}
	for _, path := range p.HostSockets {
		sockets := []string{path}
		if isClosed(path) {
			sockets = socketsBelow(path)
		}
		for _, path := range sockets {
			if err := p.hideSocket(path); err != nil {
				return fmt.Errorf("hide %s: %w", path, err)
			}
		}
	}
	return nil
}

func (p *Program) hideSocket(path string) error {
	if readable(path) == "" && !isFolderAt(path) || p.folders[path] {
		return nil
	}
	file, err := openHidden(path)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	if earlier, ok := p.hidden[path]; ok {
		unix.Close(earlier.fd)
	}
	p.hidden[path] = file
	hide := hide
	if isFolderAt(path) {
		hide = hideServices
		if p.folders == nil {
			p.folders = map[string]bool{}
		}
		p.folders[path] = true
	}
	if err := hide(path); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) && !isMissing(path) { // it may be another one by now, which the next look hides
		return err
	}
	return nil
}

// isClosed reports whether path is a folder whose mode keeps its owner from looking into it. egressd has the capability to look
// here, and the program may change the mode. Only the sockets there are hidden: the program needs the other files.
func isClosed(path string) bool {
	const lookInto = 0o500
	info, err := os.Lstat(path)
	return err == nil && info.IsDir() && info.Mode().Perm()&lookInto != lookInto
}

func socketsBelow(folder string) (paths []string) {
	_ = filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type() == fs.ModeSocket {
			paths = append(paths, path)
		}
		return nil // what cannot be read here cannot be read by the program either
	})
	return paths
}

func isFolderAt(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// hideServices puts a folder of the program's own in the place of a folder of sockets: its services make theirs there, and
// some, such as tmux, check its owner and mode.
func hideServices(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	mode := info.Mode().Perm() | 0o700
	return unix.Mount("tmpfs", path, "tmpfs", bare, fmt.Sprintf("size=1m,nr_inodes=256,mode=%#o", mode))
}

// ownQueues mounts the jail's own message queues over those of the host: a file system of queues shows the
// queues of the IPC namespace in which it was mounted (mq_overview(7)).
func ownQueues(mounts []mounted) error {
	for _, m := range mounts {
		if m.kind != "mqueue" || !isFolder(m.point) {
			continue
		}
		if err := unix.Mount("mqueue", m.point, "mqueue", bare, ""); err != nil {
			return fmt.Errorf("%s: %w", m.point, err)
		}
	}
	return nil
}

// kernelKinds are file systems by which the kernel is set up. The machine's root may write to them without any capability. Users may
// write to files there about their own processes.
var kernelKinds = [...]string{
	"proc", "sysfs", "debugfs", "tracefs", "securityfs", "configfs", "efivarfs", "pstore", "binfmt_misc", "bpf", "fusectl", "resctrl", "nfsd", "rpc_pipefs", "selinuxfs", "smackfs", "xenfs",
}

// keepKernel makes control groups read-only, and what the kernel is set up by where it is mounted a further time, such as /proc in
// the folder of a chroot; sealKernel has /proc and /sys. Control groups of its user's session are the user's, and with them the
// program could kill and stop processes outside (cgroup.kill, cgroup.freeze). Sandboxes that the program may nest need them.
func keepKernel(mounts []mounted, nested bool) error {
	top := map[string]int{} // of several in one place the last one counts
	for i, m := range mounts {
		top[m.point] = i
	}
	for i, m := range mounts {
		group := m.kind == "cgroup" || m.kind == "cgroup2"
		_, inProc := below(m.point, "/proc")
		_, inSys := below(m.point, "/sys")
		if top[m.point] != i || m.readOnly || group && nested || !group && (inProc || inSys || !slices.Contains(kernelKinds[:], m.kind)) {
			continue
		}
		if err := remountReadOnly(m.point); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EINVAL) { // of one that nobody can reach
			return fmt.Errorf("%s: %w", m.point, err)
		}
	}
	return nil
}

// closeAutomounts has the program see what is mounted in folders of an automounter, and nothing else: for each name that is looked up
// there, the automounter connects to a server. In /net, the name is that of the server.
func closeAutomounts(mounts []mounted) error {
	for _, m := range mounts {
		if !m.asks || !isFolder(m.point) {
			continue
		}
		trees := map[string]int{}
		for _, inside := range mounts {
			if _, ok := below(inside.point, m.point); !ok || inside.point == m.point || trees[inside.point] != 0 || isBelowAny(inside.point, trees) {
				continue
			}
			tree, err := cloneTree(inside.point)
			if err != nil {
				return fmt.Errorf("%s: %w", inside.point, err)
			}
			trees[inside.point] = tree
		}
		err := unix.Mount("tmpfs", m.point, "tmpfs", bare, "size=1m,mode=0755")
		for path, tree := range trees {
			err = errors.Join(err, moveTree(tree, path))
		}
		if err == nil {
			err = unix.Mount("", m.point, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|bare, "")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", m.point, err)
		}
	}
	return nil
}

func isBelowAny(path string, folders map[string]int) bool {
	for folder := range folders {
		if _, ok := below(path, folder); ok {
			return true
		}
	}
	return false
}

// hideAll hides every path. It returns a folder for new files, which is the first hidden folder, or else /tmp,
// until closeScratch. Unmounting costs milliseconds, in which the kernel waits for every processor.
func hideAll(paths []string) (scratch string, err error) {
	scratch = outerFolder(paths)
	for _, path := range paths {
		if path == scratch {
			continue
		}
		if err := hide(path); err != nil {
			return "", fmt.Errorf("hide %s: %w", path, err)
		}
	}
	if scratch == "" {
		scratch = tmp
	}
	if err := unix.Mount("tmpfs", scratch, "tmpfs", bare, "size=8m,mode=0755"); err != nil {
		return "", fmt.Errorf("hide %s: %w", scratch, err)
	}
	return scratch, nil
}

// outerFolder returns the first folder of paths that no other of them holds, or "".
func outerFolder(paths []string) string {
	for _, path := range paths {
		holds := func(other string) bool {
			_, ok := below(path, other)
			return ok && other != path
		}
		if isFolderAt(path) && !slices.ContainsFunc(paths, holds) {
			return path
		}
	}
	return ""
}

const tmp = "/tmp"

func closeScratch(scratch string) error {
	if scratch == tmp {
		return unix.Unmount(scratch, unix.MNT_DETACH)
	}
	return unix.Mount("", scratch, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|bare, "")
}

// hide puts an empty folder, or what answers nobody, in the place of path, where
// there is one.
func hide(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil
	case info.IsDir():
		return unix.Mount("tmpfs", path, "tmpfs", bare|unix.MS_RDONLY, "size=4k,mode=0555")
	}
	if err := unix.Mount("/dev/null", path, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return remountReadOnly(path) // else a change of its mode would be one of the host's device
}

func isMissing(path string) bool {
	err := unix.Access(path, unix.F_OK)
	return err == unix.ENOENT || err == unix.ENOTDIR
}

// bare is what mounts of ours are, and stay.
const bare = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// cover puts a file in scratch that holds text, and cannot be written, in the place
// of path, where there is one.
func cover(scratch, path string, text []byte) error {
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	file, err := os.CreateTemp(scratch, "")
	if err != nil {
		return err
	}
	file.Close()
	return bind(file.Name(), path, text)
}

func bind(file, path string, text []byte) error {
	if err := os.WriteFile(file, text, 0o444); err != nil {
		return err
	}
	if err := os.Chmod(file, 0o444); err != nil {
		return err
	}
	if err := unix.Mount(file, path, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|bare, "")
}

// pin makes path a read-only mount, so that no program can change or replace the file. Flags of its file system
// stay in force.
func pin(path string) error {
	if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return remountReadOnly(path)
}

// remountReadOnly leaves the other flags of a mount as they are.
func remountReadOnly(path string) error {
	flags, err := flagsOf(path)
	if err != nil {
		return err
	}
	return unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|flags, "")
}

// flagsOf are those of the mount that path is in, which mount(2) would take away where
// they are not given.
func flagsOf(path string) (flags uintptr, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return 0, err
	}
	const kept = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME
	flags = uintptr(fs.Flags) & kept // ST_… and MS_… have the same values there
	if fs.Flags&unix.ST_RELATIME != 0 {
		flags |= unix.MS_RELATIME
	}
	return flags, nil
}

// ofRoot is what the kernel lets the machine's root write without any capability,
// and acts upon outside of every namespace: it starts the program that core_pattern
// or uevent_helper names, sends its log to a host that configfs names, and exports
// disks over the network.
var ofRoot = [...]string{"/proc/sys", "/proc/sysrq-trigger", "/proc/acpi", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/scsi", "/proc/driver"}

// sealKernel keeps a program of the machine's root from that. For others the
// files are closed anyway, and then nothing is mounted over a part of /proc: with
// it the kernel would refuse nested sandboxes a /proc of their own.
func sealKernel() error {
	if unix.Access("/proc/sys/kernel/core_pattern", unix.W_OK) != nil && unix.Access("/sys/kernel/uevent_helper", unix.W_OK) != nil && unix.Access("/sys/power/state", unix.W_OK) != nil {
		return nil
	}
	for _, path := range ofRoot {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if err := pin(path); err != nil {
			return fmt.Errorf("keep %s as it is: %w", path, err)
		}
	}
	return sealFolder("/sys")
}

// sealFolder makes a folder read-only, with all file systems that are mounted in it.
func sealFolder(path string) error {
	on := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	err := unix.MountSetattr(unix.AT_FDCWD, path, unix.AT_RECURSIVE, &on)
	if errors.Is(err, unix.ENOSYS) {
		return pin(path) // before Linux 5.12; what is mounted in it is not there any more
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil // nothing is mounted there
	}
	if err != nil {
		return fmt.Errorf("keep %s as it is: %w", path, err)
	}
	return nil
}
