//go:build !linux

package hostpaths

// IsShared reports whether a file may be shared with other containers. Only Linux has these.
func IsShared(string) bool { return false }

// engineFolders returns nothing: elsewhere an engine has a machine of its own.
func engineFolders(string) []string { return nil }
