package audit

import "github.com/egressd/egressd/audit/internal/format"

// A DamageError says where a log does not hold together.
type DamageError = format.DamageError

// Torn describes bytes at the end of a segment that are no whole line.
type Torn = format.Torn

// Segments returns the paths of the segments in dir, the oldest first. It needs no lock.
func Segments(dir string) ([]string, error) { return format.Segments(dir) }

// Writing reports whether a process has the log in dir open for writing. It is no error if there is no log.
func Writing(dir string) (bool, error) { return format.Writing(dir) }
