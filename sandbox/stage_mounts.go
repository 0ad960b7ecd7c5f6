package sandbox

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const resolvConf = "/etc/resolv.conf"

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

// makeMounts has the sandbox ask the jail's name server. The mounts are seen by
// nobody outside.
func makeMounts(plan jailPlan) error {
	for _, path := range helpers {
		if err := hide(path); err != nil {
			return &SetupError{"hide " + path, err}
		}
	}
	// Whatever address a program takes for a name server leads to the jail's, so
	// that the file can be missing, or be one that was removed while it was mounted.
	text := fmt.Sprintf("# the name server of egressd run\nnameserver %s\noptions edns0\n", plan.IPv4)
	if err := cover(resolvConf, []byte(text)); err != nil && !errors.Is(err, unix.ENOENT) {
		return &SetupError{"name server in " + resolvConf, err}
	}
	return nil
}

// rearrange makes the mounts that a program is to have.
func rearrange(p Program) error {
	for _, path := range p.Hidden {
		if err := hide(path); err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
	}
	for path, text := range p.Covered {
		if err := cover(path, text); err != nil {
			return fmt.Errorf("cover %s: %w", path, err)
		}
	}
	for _, path := range p.Fixed {
		if err := fix(path); err != nil {
			return fmt.Errorf("keep %s as it is: %w", path, err)
		}
	}
	return nil
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

// bare is what mounts of ours are, and stay.
const bare = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// cover puts a file that holds text, and cannot be written, in the place of path,
// where there is one.
func cover(path string, text []byte) error {
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	const room = "/tmp" // covered for a moment, for nobody else
	if err := unix.Mount("tmpfs", room, "tmpfs", bare, "size=8m,mode=0755"); err != nil {
		return err
	}
	err := bind(room+"/file", path, text)
	return errors.Join(err, unix.Unmount(room, unix.MNT_DETACH))
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
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return err
	}
	if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	const kept = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME
	flags := uintptr(fs.Flags) & kept // ST_… and MS_… have the same values there
	if fs.Flags&unix.ST_RELATIME != 0 {
		flags |= unix.MS_RELATIME
	}
	return unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|flags, "")
}
