package jailinit

import (
	"fmt"
	"os"
	slash "path"
	"strconv"

	"golang.org/x/sys/unix"
)

// An Apart is a file system of the program, without sockets of the host's services.
// Everything except Work and Shared is read-only; changes to Home and to Private folders are lost at the end.
//
// It needs overlayfs for users (Linux 5.11) and mount_setattr(2) (5.12).
type Apart struct {
	Work    string    // the folder that is shared with the host, and the working directory
	Home    string    // can be written to, which the host does not see; empty: there is none
	Private []Private // one that lies in another comes behind it
	Shared  []string  // files and folders that are shared as Work is; one that lies in another comes behind it
	Served  []string  // folders of which egressd serves the program what they hold; what of Shared lies in them is shared all the same
}

// A Private folder is empty at the start, but for links. Where there is no such
// folder it is passed over.
type Private struct {
	Path string
	Mode os.FileMode
	Make bool // it is made where another one has taken its place
}

// set makes the file system. Files in covered exist afterwards if they existed before. When the folders that egressd serves are mounted,
// set calls serve with a descriptor for each.
func (a *Apart) set(covered []string, root bool, serve func(devices []int) error) error {
	files := resolved(covered)
	work, err := clonePlain(a.Work)
	if err != nil {
		return apartError(a.Work, err)
	}
	shared := make([]int, len(a.Shared))
	for i, path := range a.Shared {
		if shared[i], err = clonePlain(path); err != nil {
			return apartError(path, err)
		}
	}
	home := -1
	if a.Home != "" {
		if home, err = clonePlain(a.Home); err != nil {
			return apartError(a.Home, err)
		}
	}
	if err := readOnly(); err != nil {
		return apartError("read-only", err)
	}
	for _, p := range a.Private {
		if err := p.empty(); err != nil {
			return apartError(p.Path, err)
		}
	}
	if home >= 0 {
		if err := overlay(home, a.Home); err != nil {
			return apartError(a.Home, err)
		}
	}
	if err := mountServed(a.Served, root, serve); err != nil {
		return err
	}
	for i, path := range a.Shared {
		if err := moveTree(shared[i], path); err != nil {
			return apartError(path, err)
		}
	}
	if err := moveTree(work, a.Work); err != nil {
		return apartError(a.Work, err)
	}
	if err := makeFiles(files); err != nil {
		return apartError("files", err)
	}
	return os.Chdir(a.Work) // the one until now is the one of the host
}

// mountServed mounts folders that egressd serves. Nobody may look into one until egressd does.
func mountServed(folders []string, root bool, serve func(devices []int) error) error {
	if len(folders) == 0 {
		return nil
	}
	var devices []int
	defer func() { CloseAll(devices) }()
	for _, path := range folders {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return apartError(path, err)
		}
		device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return apartError(path, &os.PathError{Op: "open", Path: "/dev/fuse", Err: err})
		}
		devices = append(devices, device)
		options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,allow_other", device, unix.Getuid(), unix.Getgid())
		if root {
			options += ",default_permissions" // else egressd opens files as the user that the program has
		}
		if err := unix.Mount("egressd", path, "fuse.egressd", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
			return apartError(path, os.NewSyscallError("mount fuse", err))
		}
	}
	return serve(devices)
}

func apartError(what string, err error) error {
	return fmt.Errorf("set the file system apart: %s: %w", what, err)
}

func resolved(paths []string) (files []string) {
	for _, path := range paths {
		if way, err := trail(path); err == nil {
			files = append(files, way[len(way)-1])
		}
	}
	return files
}

// makeFiles makes those of files that are no longer there: something is to cover
// them.
func makeFiles(files []string) error {
	for _, file := range files {
		if _, err := os.Stat(file); err == nil {
			continue
		}
		if err := os.MkdirAll(slash.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// readOnly makes every mount so. The ones in /proc stay what they were: programs
// set themselves up by it.
func readOnly() error {
	on := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &on); err != nil {
		return os.NewSyscallError("mount_setattr", err)
	}
	off := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	_ = unix.MountSetattr(unix.AT_FDCWD, "/proc", 0, &off) // it was read-only before
	return nil
}

// empty puts a folder of its own in the place of one. Its links stay: systems
// without /usr find their programs by them.
func (p Private) empty() error {
	if p.Make {
		_ = os.MkdirAll(p.Path, p.Mode) // where it cannot be made, none was there
	}
	if info, err := os.Lstat(p.Path); err != nil || !info.IsDir() {
		return nil
	}
	links := linksIn(p.Path)
	if err := unix.Mount("tmpfs", p.Path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	if err := os.Chmod(p.Path, p.Mode); err != nil {
		return err
	}
	for name, target := range links {
		if err := os.Symlink(target, slash.Join(p.Path, name)); err != nil {
			return err
		}
	}
	return nil
}

func linksIn(folder string) map[string]string {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil
	}
	links := map[string]string{}
	for _, e := range entries {
		if e.Type() != os.ModeSymlink {
			continue
		}
		if target, err := os.Readlink(slash.Join(folder, e.Name())); err == nil {
			links[e.Name()] = target
		}
	}
	return links
}

// cloneTree returns a folder as it is now, with what is mounted in it.
func cloneTree(path string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	return fd, os.NewSyscallError("open_tree", err)
}

// clonePlain is cloneTree for a path that had no symbolic links when egressd looked at it. A program of another run, which may write
// there, could have made one since.
func clonePlain(path string) (int, error) {
	at, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return -1, os.NewSyscallError("openat2", err)
	}
	defer unix.Close(at)
	fd, err := unix.OpenTree(at, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
	return fd, os.NewSyscallError("open_tree", err)
}

// moveTree puts a file or folder that was cloned at path, which is made where a private
// folder has taken its place.
func moveTree(tree int, path string) error {
	defer unix.Close(tree)
	var what unix.Stat_t
	if err := unix.Fstat(tree, &what); err != nil {
		return err
	}
	if what.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
	} else if err := makeFiles([]string{path}); err != nil {
		return err
	}
	return os.NewSyscallError("move_mount", unix.MoveMount(tree, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH))
}

// overlay puts a folder that was cloned at path, and has what is written to it
// stay in memory, which is mounted between the two. Sockets in the folder cannot be
// connected to any more.
func overlay(tree int, path string) error {
	if err := moveTree(tree, path); err != nil {
		return err
	}
	lower, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(lower)
	if err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700"); err != nil {
		return os.NewSyscallError("mount", err)
	}
	scratch, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(scratch)
	var own unix.Stat_t
	if err := unix.Fstat(lower, &own); err != nil {
		return err
	}
	for _, name := range []string{"upper", "work"} {
		if err := unix.Mkdirat(scratch, name, own.Mode&0o777); err != nil {
			return err
		}
	}
	// Names of folders could have characters that mean something in options.
	options := fmt.Sprintf("userxattr,lowerdir=/proc/self/fd/%d,upperdir=/proc/self/fd/%d/upper,workdir=/proc/self/fd/%d/work", lower, scratch, scratch)
	return os.NewSyscallError("mount overlay", unix.Mount("overlay", path, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options))
}

// closeFolders closes what was inherited and leads to folders of the host, which
// are not read-only there.
func closeFolders(apart bool) error {
	if !apart {
		return nil
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		var s unix.Stat_t
		switch err := unix.Fstat(fd, &s); {
		case err != nil || s.Mode&unix.S_IFMT != unix.S_IFDIR:
		case fd <= 2:
			return fmt.Errorf("descriptor %d is a folder of the host", fd)
		default:
			unix.CloseOnExec(fd)
		}
	}
	return nil
}
