//go:build linux

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
)

// asRoot is the command that runs this program again for an ordinary user: as root over the users that /etc/subuid gives
// to that user. Many tests need a second user. asRoot returns nil for root, and where no such users can be had.
func asRoot() *exec.Cmd {
	unshare := []string{"unshare", "--user", "--map-root-user", "--map-auto", "--mount"}
	if os.Getuid() == 0 || exec.Command(unshare[0], append(unshare[1:], "true")...).Run() != nil {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil
	}
	cmd := exec.Command(unshare[0], append(append(unshare[1:], "--", self), os.Args[1:]...)...)
	cmd.Env = append(os.Environ(), stageVariable+"="+stageRoot)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// ownFolders are the folders in which egressd and its tests make or check files, and their parents.
var ownFolders = []string{"/", "/etc", "/home", "/run", "/tmp", "/var", "/var/lib"}

// ownRoot gives the process a root folder and ownFolders that belong to it, in which the machine's files are mounted. The
// machine's belong to a user that has no number here, and egressd trusts no folder of such a user.
func ownRoot() error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	root, err := os.MkdirTemp("", "lab-root-")
	if err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", root, "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount a root: %w", err)
	}
	for _, folder := range ownFolders {
		if err := showIn(root, folder); err != nil {
			return err
		}
	}
	old := filepath.Join(root, ".old")
	if err := os.Mkdir(old, 0o700); err != nil {
		return err
	}
	if err := syscall.PivotRoot(root, old); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	return errors.Join(os.Chdir(dir), os.Remove("/.old"+root), syscall.Unmount("/.old", syscall.MNT_DETACH), os.Remove("/.old"))
}

// showIn fills a folder of root with what the machine has there. In /tmp that is what belongs to the user.
func showIn(root, folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		from := filepath.Join(folder, e.Name())
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) || folder == "/tmp" && (from == root || info.Sys().(*syscall.Stat_t).Uid != 0) {
			continue
		}
		if err == nil {
			err = show(from, root+from, info)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// show mounts a file or a folder elsewhere, or makes an empty folder there if that is one of ownFolders.
func show(from, to string, info fs.FileInfo) error {
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case info.IsDir():
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
		if slices.Contains(ownFolders, from) {
			return os.Chmod(to, info.Mode()) // with the bit of /tmp that Mkdir leaves out
		}
	default:
		if err := os.WriteFile(to, nil, 0o644); err != nil {
			return err
		}
	}
	if err := syscall.Mount(from, to, "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s: %w", from, err)
	}
	return nil
}
