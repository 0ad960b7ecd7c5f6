// Package places says where things of egressd are on this machine, what leads out of a sandbox
// that shares its files, and which path holds which.
package places

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/doors"
)

// DoorsBut are the doors of this machine for who runs this, but for those at kept.
func DoorsBut(kept []string) []string { return doors.Of(os.Getuid(), os.Environ(), kept) }

// Real is where path leads to, or what it says where there is nothing.
func Real(path string) string {
	if all, err := filepath.Abs(path); err == nil {
		path = all
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return filepath.Clean(path)
}

// Reals are where paths lead to.
func Reals(paths []string) (all []string) {
	for _, path := range paths {
		all = append(all, Real(path))
	}
	return all
}

// IsOrHolds reports whether path is another one, by whatever name, or is above it.
func IsOrHolds(path, other string) bool { return Within(Real(other), Real(path)) }

// OwnProgram is the file of this program, which the next run is started from, or
// nothing where it is not there any more.
func OwnProgram() []string {
	path, err := os.Executable()
	if err != nil {
		return nil
	}
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	return []string{path}
}

// OwnFolders are the folders in which a policy is looked for: one that is made there
// would count from the next run on. Those of the user are made.
func OwnFolders() (folders []string) {
	for _, place := range config.Places() {
		folder := filepath.Dir(place)
		if !IsOrHolds("/etc", folder) {
			_ = os.MkdirAll(folder, 0o700) // where it cannot be made, the program cannot make it either
		}
		if _, err := os.Stat(folder); err == nil {
			folders = append(folders, folder)
		}
	}
	return folders
}

// Within reports whether path is folder, or lies in it.
func Within(path, folder string) bool {
	rest, err := filepath.Rel(folder, path)
	return err == nil && rest != ".." && !strings.HasPrefix(rest, "../")
}
