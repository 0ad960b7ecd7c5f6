package jailinit

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

const ResolvConf = "/etc/resolv.conf"

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

// rearrange makes the mounts that a program is to have. They are seen by nobody
// outside. What is hidden and fixed has all its paths in p afterwards.
func (s *inside) rearrange(plan Plan, p *Program) error {
	if p.Apart != nil {
		if err := p.Apart.set(append(slices.Collect(maps.Keys(p.Covered)), ResolvConf)); err != nil {
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
	if err := closeLateMounts(mounts); err != nil {
		return fmt.Errorf("close the devices of what was mounted meanwhile: %w", err)
	}
	p.Hidden, p.Fixed = withAliases(p.Hidden, mounts), withAliases(p.Fixed, mounts)
	dir, err := workingDirectory()
	if err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}
	for _, path := range p.Fixed {
		err := fix(path)
		if errors.Is(err, unix.ENOENT) && p.Apart != nil {
			continue // the host has it where the program sees another folder
		}
		if err != nil {
			return fmt.Errorf("keep %s as it is: %w", path, err)
		}
	}
	room, err := hideAll(p.Hidden)
	if err != nil {
		return err
	}
	p.Doors = slices.DeleteFunc(p.Doors, isMissing) // what comes later is not hidden either
	for _, path := range p.Doors {
		if err := hide(path); err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
	}
	covered := maps.Clone(p.Covered)
	if covered == nil {
		covered = map[string][]byte{}
	}
	// Whatever address a program takes for a name server leads to the jail's, so
	// that the file can be missing, or be one that was removed while it was
	// mounted.
	covered[ResolvConf] = fmt.Appendf(nil, "# the name server of egressd run\nnameserver %d.%d.%d.%d\noptions edns0\n", plan.IPv4[0], plan.IPv4[1], plan.IPv4[2], plan.IPv4[3])
	for path, text := range covered {
		if err := cover(room, path, text); err != nil && !(path == ResolvConf && errors.Is(err, unix.ENOENT)) {
			return fmt.Errorf("cover %s: %w", path, err)
		}
	}
	if err := closeRoom(room); err != nil {
		return err
	}
	if err := sealKernel(); err != nil {
		return err
	}
	if err := anchor(kept); err != nil {
		return err
	}
	return reenter(dir)
}

// ownQueues has the jail's own message queues in the place of those outside: a file system of
// queues shows those of the IPC namespace in which it was mounted (mq_overview(7)).
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

// hideAll hides every path. The first folder among them, or /tmp where there is
// none, is where files can be made from then on, until closeRoom: to unmount
// something costs milliseconds, in which the kernel waits for every processor.
func hideAll(paths []string) (room string, err error) {
	for _, path := range paths {
		if info, err := os.Stat(path); room == "" && err == nil && info.IsDir() {
			room = path
			continue
		}
		if err := hide(path); err != nil {
			return "", fmt.Errorf("hide %s: %w", path, err)
		}
	}
	if room == "" {
		room = tmp
	}
	if err := unix.Mount("tmpfs", room, "tmpfs", bare, "size=8m,mode=0755"); err != nil {
		return "", fmt.Errorf("hide %s: %w", room, err)
	}
	return room, nil
}

const tmp = "/tmp"

func closeRoom(room string) error {
	if room == tmp {
		return unix.Unmount(room, unix.MNT_DETACH)
	}
	return unix.Mount("", room, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|bare, "")
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
	return unix.Mount("/dev/null", path, "", unix.MS_BIND, "")
}

func isMissing(path string) bool {
	err := unix.Access(path, unix.F_OK)
	return err == unix.ENOENT || err == unix.ENOTDIR
}

// bare is what mounts of ours are, and stay.
const bare = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// cover puts a file of room that holds text, and cannot be written, in the place
// of path, where there is one.
func cover(room, path string, text []byte) error {
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	file, err := os.CreateTemp(room, "")
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

// fix keeps path from being changed, and, since it is a mount now, from being
// replaced. What its file system forbids stays forbidden.
func fix(path string) error {
	flags, err := flagsOf(path)
	if err != nil {
		return err
	}
	if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
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
