package inspect

import (
	"sync"
	"time"
)

// A countdown calls a function on its own goroutine when its time is over. It is safe for concurrent use.
//
// A running timer keeps everything in memory that its function refers to. A connection therefore ends its
// countdowns when it closes. After that, begin does nothing.
type countdown struct {
	time  time.Duration
	mu    sync.Mutex // guards what follows
	timer *time.Timer
	ended bool
}

// newCountdown returns one that does not run yet.
func newCountdown(d time.Duration, late func()) *countdown {
	c := &countdown{time: d, timer: time.AfterFunc(d, late)}
	c.timer.Stop()
	return c
}

// begin starts it with its whole time. If it runs already, it starts again.
func (c *countdown) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.timer.Reset(c.time)
	}
}

func (c *countdown) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer.Stop()
}

// end stops it for good.
func (c *countdown) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.timer.Stop()
}
