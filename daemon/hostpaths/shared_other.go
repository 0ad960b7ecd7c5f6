//go:build !linux

package hostpaths

import "github.com/egressd/egressd/integrations/boundary"

// IsShared reports whether a file may be shared with other containers. Only Linux has these.
func IsShared(string) bool { return false }

// askEngine notes nothing: elsewhere an engine has a machine of its own.
func askEngine(*boundary.Machine, string) {}
