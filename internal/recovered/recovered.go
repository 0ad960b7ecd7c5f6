// Package recovered keeps a panic in the work for one client from ending the service of all,
// and tells the operator of it.
//
//	defer recovered.Log("answering a question", func() { failed = errPanic })
package recovered

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// Log is to be deferred. It recovers from a panic, logs that with its stack, and calls after,
// which may be nil. Without a panic it does nothing. doing says what failed, for the operator.
//
// A program in a sandbox may know how to cause panics. Log writes one line a second at most,
// which counts the panics since the line before.
func Log(doing string, after func()) {
	why := recover()
	if why == nil {
		return
	}
	if unlogged, ok := latest.take(time.Now()); ok {
		slog.Error("recovered from a panic", "doing", doing, "panic", fmt.Sprint(why), "unlogged", unlogged, "stack", string(debug.Stack()))
	}
	if after != nil {
		after()
	}
}

const every = time.Second

var latest pace

// A pace lets one thing happen in a while. Its zero value is ready.
type pace struct {
	mu      sync.Mutex // guards what follows
	last    time.Time
	skipped int
}

// take reports whether a second has passed since the last line, and counts the calls between.
func (p *pace) take(now time.Time) (skipped int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.last.IsZero() && now.Sub(p.last) < every {
		p.skipped++
		return 0, false
	}
	skipped = p.skipped
	p.last, p.skipped = now, 0
	return skipped, true
}
