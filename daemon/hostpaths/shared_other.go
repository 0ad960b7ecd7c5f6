//go:build !linux

package hostpaths

// IsShared reports whether a file may be shared with other containers. Only Linux has these.
func IsShared(string) bool { return false }
