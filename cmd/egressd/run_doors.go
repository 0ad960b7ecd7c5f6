package main

import (
	"os"
	"path/filepath"

	"github.com/egressd/egressd/cmd/egressd/internal/config"
	"github.com/egressd/egressd/internal/doors"
)

// doorsBut are the doors of this machine for who runs this, but for those at kept.
func doorsBut(kept []string) []string { return doors.Of(os.Getuid(), os.Environ(), kept) }

// realPath is where path leads to, or what it says where there is nothing.
func realPath(path string) string {
	if all, err := filepath.Abs(path); err == nil {
		path = all
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return filepath.Clean(path)
}

// isOrHolds reports whether path is another one, by whatever name, or is above it.
func isOrHolds(path, other string) bool { return within(realPath(other), realPath(path)) }

// ownProgram is the file of this program, which the next run is started from, or
// nothing where it is not there any more.
func ownProgram() []string {
	path, err := os.Executable()
	if err != nil {
		return nil
	}
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	return []string{path}
}

// ownPlaces are the folders in which a policy is looked for: one that is made there
// would count from the next run on. Those of the user are made.
func ownPlaces() (folders []string) {
	for _, place := range config.Places() {
		folder := filepath.Dir(place)
		if !isOrHolds("/etc", folder) {
			_ = os.MkdirAll(folder, 0o700) // where it cannot be made, the program cannot make it either
		}
		if _, err := os.Stat(folder); err == nil {
			folders = append(folders, folder)
		}
	}
	return folders
}
