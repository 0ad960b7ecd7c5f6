package egress

import (
	"fmt"
	"sync"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/record"
)

// lateEnds are close records that the log could not take. Each says what has passed, and is written behind the first record
// that the log takes again. The zero value is ready. It is safe for concurrent use.
type lateEnds struct {
	mu    sync.Mutex // guards what follows
	lines [][]byte
	size  int   // of lines
	lost  int64 // that were too many
}

// lateMost bounds the bytes of lines: some 8,000 records.
const lateMost = 4 << 20

func (l *lateEnds) keep(line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size+len(line) > lateMost {
		l.lost++
		return
	}
	l.lines, l.size = append(l.lines, line), l.size+len(line)
}

// write writes what waits, as far as the log takes it.
func (l *lateEnds) write(log *audit.Log) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.lines) > 0 {
		if _, err := log.Append(l.lines[0]); err != nil {
			return
		}
		l.size -= len(l.lines[0])
		l.lines = l.lines[1:]
	}
	l.lines = nil
	if l.lost == 0 {
		return
	}
	if _, err := log.Append(record.Note(record.KindRecovery, fmt.Sprintf("%d flows have no close record: the audit log could not take them, and they were too many to wait", l.lost))); err == nil {
		l.lost = 0
	}
}
