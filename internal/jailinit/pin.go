package jailinit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	slash "path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// pinFolders keeps the folders above what is hidden or fixed, and the symbolic links that lead there, where they are: a
// program that renamed or removed one could put something else under the path of a fixed file. It returns the folders.
// Paths that do not exist are passed over. The working directory stays in the present root.
//
// The kernel refuses both for a mount point, by whichever mount of the namespace the folder is reached. So the folders are
// mount points in the present root alone. This process gets a copy of that root, where they are none: files can be renamed
// and linked across them. The copy covers the present root.
func pinFolders(paths []string) (folders []string, err error) {
	var trails, links []string
	seen := plain{}
	for _, path := range paths {
		way, err := seen.trail(path)
		if err != nil {
			continue
		}
		for _, link := range way[:len(way)-1] {
			if mayChange(slash.Dir(link)) && !slices.Contains(links, link) {
				links = append(links, link)
			}
		}
		trails = append(trails, way...)
	}
	folders = foldersAbove(trails)
	if len(folders)+len(links) == 0 {
		return nil, nil
	}
	root, err := cloneTree("/")
	if err != nil {
		return nil, fmt.Errorf("copy the root: %w", err)
	}
	defer unix.Close(root)
	for _, link := range links {
		if err := keepLink(link); err != nil {
			return nil, fmt.Errorf("keep the link %s as it is: %w", link, err)
		}
	}
	for i, folder := range folders {
		if i == 0 {
			err = unix.Mount("tmpfs", folder, "tmpfs", bare|unix.MS_RDONLY, "size=4k,mode=0555")
		} else {
			err = unix.Mount(folders[i-1], folder, "", unix.MS_BIND, "")
		}
		if err != nil {
			return nil, fmt.Errorf("keep %s where it is: %w", folder, err)
		}
	}
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return nil, fmt.Errorf("cover the root: %w", os.NewSyscallError("move_mount", err))
	}
	return folders, os.NewSyscallError("chroot", unix.Chroot("/proc/self/fd/"+strconv.Itoa(root)))
}

// keepLink makes a symbolic link a mount of itself: it is followed as before, and can be
// neither removed nor replaced.
func keepLink(path string) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return os.NewSyscallError("open_tree", err)
	}
	defer unix.Close(tree)
	return os.NewSyscallError("move_mount", unix.MoveMount(tree, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH))
}

// linksMost is how many symbolic links the kernel follows in one path.
const linksMost = 40

// plain are paths that are there and no symbolic links, as far as was looked: most paths
// of one call begin with the same folders.
type plain map[string]bool

// trail returns the symbolic links in path, each as a path without other links, and then the final target.
func trail(path string) (way []string, err error) { return plain{}.trail(path) }

func (p plain) trail(path string) (way []string, err error) {
	if !slash.IsAbs(path) {
		dir, err := os.Getwd()
		if err != nil {
			return nil, err
		}
		path = dir + "/" + path
	}
	at, rest := "/", path
	for len(way) <= linksMost {
		rest = strings.TrimLeft(rest, "/")
		if rest == "" {
			return append(way, at), nil
		}
		name, more, _ := strings.Cut(rest, "/")
		next := slash.Join(at, name) // at has no links, so that .. is what it says
		if p[next] {
			at, rest = next, more
			continue
		}
		info, err := os.Lstat(next)
		if err != nil {
			return nil, err
		}
		if info.Mode()&os.ModeSymlink == 0 {
			p[next] = true
			at, rest = next, more
			continue
		}
		target, err := os.Readlink(next)
		if err != nil {
			return nil, err
		}
		if way = append(way, next); slash.IsAbs(target) {
			at = "/"
		}
		rest = target + "/" + more
	}
	return nil, unix.ELOOP
}

// reenter changes to the working directory's path again, because the path may lead through new mounts now.
// Otherwise renames in the old folder would cross those mounts, and a hidden working directory would stay
// visible. A removed directory stays as it is.
func reenter(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.Chdir(dir); err != nil {
		return fmt.Errorf("the working directory is hidden from programs: %w", err)
	}
	return nil
}

// workingDirectory is empty for one that was removed.
func workingDirectory() (string, error) {
	dir, err := os.Getwd()
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return dir, err
}

// foldersAbove returns the folders above the paths that the user may rename, the innermost first.
//
// The paths lead through no links.
func foldersAbove(paths []string) []string {
	found := map[string]bool{}
	for _, path := range paths {
		for folder := slash.Dir(path); folder != slash.Dir(folder) && !found[folder]; folder = slash.Dir(folder) {
			if mayChange(slash.Dir(folder)) {
				found[folder] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b string) int { return cmp.Compare(len(b), len(a)) })
}

// mayChange reports whether the user may write to a file or folder, now or after a change of its mode.
func mayChange(path string) bool {
	var file unix.Stat_t
	return unix.Access(path, unix.W_OK) == nil || unix.Stat(path, &file) == nil && int(file.Uid) == unix.Getuid()
}
