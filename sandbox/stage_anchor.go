package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// anchor keeps the folders above what is hidden or fixed from being renamed: that
// would go with them, and something else could be put under its path. A folder stays
// where it is once it is a mount of itself, which costs renames and hard links across
// its edge (EXDEV). Paths that do not exist are passed over.
//
// A symbolic link on the way cannot be kept: what it leads to is, under its own path.
func anchor(paths []string) error {
	for _, folder := range foldersAbove(paths) {
		if err := unix.Mount(folder, folder, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("keep %s where it is: %w", folder, err)
		}
	}
	return nil
}

// reenter has the working directory be what its path leads to now: else renames
// from there would cross the mounts that paths lead through, and it would lead past
// them where it is in a folder that is hidden. One that was removed leads nowhere,
// and stays.
func reenter(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.Chdir(dir); err != nil {
		return fmt.Errorf("the working directory is egressd's own: %w", err)
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

// foldersAbove are the folders above the paths that the user may rename, the outermost
// first, so that each is a mount within the ones above it.
func foldersAbove(paths []string) []string {
	found := map[string]bool{}
	for _, path := range paths {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue
		}
		for folder := filepath.Dir(real); folder != filepath.Dir(folder) && !found[folder]; folder = filepath.Dir(folder) {
			if unix.Access(filepath.Dir(folder), unix.W_OK) == nil {
				found[folder] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b string) int { return cmp.Compare(len(a), len(b)) })
}
