//go:build !linux

package exits

// IsInside reports false: only Linux has sandboxes of egressd.
func IsInside() bool { return false }
