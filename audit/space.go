package audit

import "time"

const (
	floorMost     = 1 << 30
	measuredAfter = time.Second // between two looks at the free space
)

// Scarce reports whether the file system of the log had little free space a moment ago, see
// [Options.Floor]: whoever can record less should do so.
func (l *Log) Scarce() bool { return l.scarce.Load() }

// measureSpace looks at the free space, at most once a second. It is called with syncing held, or
// before the log is used. If the system does not say, nothing changes.
func (l *Log) measureSpace() {
	if time.Since(l.measured) < measuredAfter {
		return
	}
	l.measured = time.Now()
	free, size, err := Space(l.dir)
	if err != nil {
		return
	}
	floor := l.options.Floor
	if floor == 0 {
		floor = Floor(size)
	}
	l.scarce.Store(free < floor)
}

// Floor is the free space that a file system of a size should have, in bytes, see [Options.Floor].
func Floor(size int64) int64 { return min(size/10, floorMost) }
