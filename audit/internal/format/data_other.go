//go:build !linux

package format

import "os"

// nextData is at: where the holes of a file are is not asked here.
func nextData(_ *os.File, at int64) (int64, error) { return at, nil }
