package sandbox

import (
	"cmp"
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
	folders := foldersAbove(paths)
	for _, folder := range folders {
		if err := unix.Mount(folder, folder, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("keep %s where it is: %w", folder, err)
		}
	}
	if cwd, err := os.Getwd(); err == nil && len(folders) > 0 {
		_ = os.Chdir(cwd) // by the mounts that paths lead through: else renames from here would cross them
	}
	return nil
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
