package audit

import "github.com/egressd/egressd/audit/internal/format"

// roomMost is how much somebody appends who must not wait: a segment with less room is about to end.
const roomMost = 16 * format.MaxLine

// WritesAtOnce reports whether Append would most likely only write to the page cache. Otherwise another
// append is under way, which may stand before a slow disk, or Append has to end the segment
// or to go on after an error, which both wait for syncs. A caller that must not wait leaves that to a goroutine.
func (l *Log) WritesAtOnce() bool {
	if !l.writing.TryLock() {
		return false
	}
	defer l.writing.Unlock()
	room := l.end.Offset == 0 || l.end.Offset+roomMost <= l.options.SegmentBytes
	return room && l.Err() == nil
}
