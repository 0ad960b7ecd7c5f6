package daemon

import (
	"fmt"
	"io"
	"sync"
)

// operatorMessages are for the operator, from callers that must not wait: standard error may be a pipe that nobody
// empties. A goroutine writes them. The zero value is ready.
type operatorMessages struct {
	writing sync.WaitGroup

	mu      sync.Mutex // guards what follows
	waiting []string
	busy    bool // a goroutine writes
}

// messagesMost is how many wait. More are dropped.
const messagesMost = 64

// write has text written to talk soon.
func (m *operatorMessages) write(talk io.Writer, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.waiting) == messagesMost {
		return
	}
	m.waiting = append(m.waiting, text)
	if m.busy {
		return
	}
	m.busy = true
	m.writing.Go(func() {
		for text, ok := m.next(); ok; text, ok = m.next() {
			fmt.Fprint(talk, text)
		}
	})
}

// next takes the oldest message. If there is none, no goroutine writes any more.
func (m *operatorMessages) next() (text string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy = len(m.waiting) > 0; !m.busy {
		return "", false
	}
	text, m.waiting = m.waiting[0], m.waiting[1:]
	return text, true
}
